#include "tests/lib/store/save_image.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

uint8_t *save_image(const struct saved_state *state, const struct outer_part *body, size_t n, size_t *size_p)
{
    uint8_t head[SAVED_HEAD_MAX];
    uint32_t crc = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        crc = crc32c(crc, body[i].data, body[i].size);
        bytes += body[i].size;
    }
    size_t at = saved_state_head(state, bytes, crc, head);
    uint8_t *image = mem_alloc(1, at + bytes);
    assert(image);
    memcpy(image, head, at);
    for (size_t i = 0; i < n; i++) {
        memcpy(image + at, body[i].data, body[i].size);
        at += body[i].size;
    }
    *size_p = at;
    return image;
}

bool save_image_holds(const uint8_t *image, size_t size, const struct outer_part *body, size_t n)
{
    size_t at = size;
    for (size_t i = n; i-- > 0;) {
        at -= body[i].size;
        if (memcmp(image + at, body[i].data, body[i].size) != 0) return false;
    }
    return true;
}
