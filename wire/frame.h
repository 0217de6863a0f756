/* The 16-byte header before every message body. Its layout is the same in every protocol version, so that two programs
 * of different versions can still exchange REFUSE.
 *
 *      0  u32  magic "ATL1" (bytes 41 54 4c 31)
 *      4  u8   protocol version
 *      5  u8   message type
 *      6  u16  0
 *      8  u32  bytes of the body
 *     12  u32  crc32c of the 12 bytes above, continued over the body */
#ifndef WIRE_FRAME_H
#define WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define FRAME_MAGIC 0x314c5441u

struct frame {
    uint8_t version, type;
    const uint8_t *body; /* borrowed from the source */
    size_t size;         /* of the body */
};

/* Write the header before a body of `size` bytes that is already in place at dst + WIRE_HEADER. */
void frame_seal(uint8_t *dst, uint8_t version, uint8_t type, size_t size);
/* Check everything except version and type, which the caller checks. CORRUPT, with the reason in err, unless src[size]
 * is exactly one frame with a correct checksum and a body of at most WIRE_BODY_MAX bytes. */
enum status frame_open(struct frame *f, const uint8_t *src, size_t size, struct err *err) MUST_CHECK;

#endif
