/* Message bodies behind a correct header: byte 0 is the type, byte 1 the version, the rest the body.
 * A body is refused with a reason, or encoding the decoded message returns the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "tests/fuzz/fuzz_check.h"
#include "wire/frame.h"
#include "wire/msg.h"

/* Corrects the checksum of a CHUNK's data, which lies 4 bytes before the length of the data. */
static void make_chunk_right(uint8_t *body, size_t size)
{
    enum { CRC_AT = 29, DATA_AT = 37 };
    if (size <= DATA_AT) return;
    uint32_t crc = crc32c(0, body + DATA_AT, size - DATA_AT);
    for (int i = 0; i < 4; i++) body[CRC_AT + i] = (uint8_t)(crc >> (8 * i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct msg m;
    if (size < 2 || size - 2 > WIRE_BODY_MAX) return 0;
    uint8_t type = data[0], version = data[1];
    size_t body = size - 2, n = WIRE_HEADER + body, again_size;
    uint8_t *frame = malloc(n), *again = malloc(n); /* exact size, so that a sanitizer detects every over-read */
    FUZZ_CHECK(frame && again);
    memcpy(frame + WIRE_HEADER, data + 2, body);
    if (type == MSG_CHUNK) make_chunk_right(frame + WIRE_HEADER, body);
    frame_seal(frame, version, type, body);
    struct err err = {0};
    enum status status = msg_decode(&m, frame, n, &err);
    if (status == STATUS_OK) {
        FUZZ_CHECK(m.type == (enum msg_type)type);
        FUZZ_CHECK(version == WIRE_VERSION || type == MSG_REFUSE);
        FUZZ_CHECK(msg_encoded_size(&m) == n);
        FUZZ_CHECK(msg_encode(&m, again, n - 1, &again_size) == STATUS_LIMIT);
        FUZZ_CHECK(msg_encode(&m, again, n, &again_size) == STATUS_OK && again_size == n);
        FUZZ_CHECK(memcmp(frame + WIRE_HEADER, again + WIRE_HEADER, body) == 0);
    } else {
        FUZZ_CHECK(status == (version == WIRE_VERSION || type == MSG_REFUSE ? STATUS_CORRUPT : STATUS_UNSUPPORTED));
        FUZZ_CHECK(err.code == status && err.msg[0]);
    }
    free(frame);
    free(again);
    return 0;
}
