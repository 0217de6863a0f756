#include "common/environment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum status environment_number(const char *name, const char *what, uint64_t normal, uint64_t most, uint64_t *value,
                               struct err *err)
{
    const char *text = getenv(name);
    char *end = NULL;
    uint64_t number = normal;
    if (text && *text) {
        errno = 0;
        number = strtoull(text, &end, 10);
        if (*end || *text < '0' || *text > '9' || errno || number > most)
            return err_set(err, STATUS_INVALID, "%s=%.40s: want %s, 0 to %" PRIu64, name, text, what, most);
    }
    *value = number;
    return STATUS_OK;
}
