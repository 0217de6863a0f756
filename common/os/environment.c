#include "common/os/environment.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/base/number.h"

enum status environment_number(const char *name, const char *what, uint64_t normal, uint64_t most, uint64_t *value,
                               struct err *err)
{
    const char *text = getenv(name);
    uint64_t number = normal;
    assert(normal <= most);
    if (text && *text && (!number_whole(text, &number) || number > most))
        return err_set(err, STATUS_INVALID, "%s=%.40s: expected %s, 0 to %" PRIu64, name, text, what, most);
    *value = number;
    return STATUS_OK;
}
