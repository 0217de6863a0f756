/* One encoded message that several connections send: bytes with a count of references, without copies. */
#ifndef WIRE_BLOCK_H
#define WIRE_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct wire_block {
    atomic_uint references;
    size_t size, cap; /* bytes of the message; of data */
    uint8_t data[];
};

/* One reference; NULL: no memory. */
struct wire_block *wire_block_new(size_t cap);
/* Another reference, for the caller. The bytes no longer change. */
struct wire_block *wire_block_keep(struct wire_block *block);
/* Any thread may drop its reference; the last one frees the block. NULL is allowed. */
void wire_block_drop(struct wire_block *block);
/* The caller has the only reference: it may write the bytes anew. */
bool wire_block_is_own(struct wire_block *block);

#endif
