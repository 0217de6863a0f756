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
    uint32_t crc;        /* of header and body, as checked */
};

/* Write the header before a body of `size` bytes that is already in place at dst + WIRE_HEADER. Returns the checksum.
 */
uint32_t frame_seal(uint8_t *dst, uint8_t version, uint8_t type, size_t size);
/* The same for a body whose last `tail` bytes have the CRC32C `crc`: they are not read. */
uint32_t frame_seal_tail(uint8_t *dst, uint8_t version, uint8_t type, size_t size, size_t tail, uint32_t crc);
/* The CRC32C of the last `tail` bytes of a frame with a body of `size` bytes and the right checksum `crc`. They are not
 * read. */
uint32_t frame_tail_crc(const uint8_t *frame, size_t size, size_t tail, uint32_t crc);
/* Check everything except version and type, which the caller checks. CORRUPT, with the reason in err, unless src[size]
 * is exactly one frame with a correct checksum and a body of at most WIRE_BODY_MAX bytes. */
enum status frame_open(struct frame *f, const uint8_t *src, size_t size, struct err *err) MUST_CHECK;

#endif
