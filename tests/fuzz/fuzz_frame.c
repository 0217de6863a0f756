/* Raw bytes of a socket, with no checksum corrected: the decoder never over-reads and accepts only whole valid
 * frames. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz_check.h"
#include "wire/frame.h"
#include "wire/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct msg m;
    struct frame f;
    struct err err = {0};
    enum status status = frame_open(&f, data, size, &err);
    FUZZ_CHECK(status == STATUS_OK || (status == STATUS_CORRUPT && err.code == status && err.msg[0]));
    enum status decoded = msg_decode(&m, data, size, &err);
    if (status != STATUS_OK) {
        FUZZ_CHECK(decoded == STATUS_CORRUPT);
        return 0;
    }
    FUZZ_CHECK(f.body == data + WIRE_HEADER && f.size == size - WIRE_HEADER);
    uint8_t *copy = malloc(size);
    FUZZ_CHECK(copy);
    memcpy(copy, data, size);
    memset(copy, 0, WIRE_HEADER);
    frame_seal(copy, f.version, f.type, f.size);
    FUZZ_CHECK(memcmp(copy, data, size) == 0);
    free(copy);
    return 0;
}
