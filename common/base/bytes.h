/* Bounded little-endian cursors: all code that reads or writes numbers of a message or file uses them.
 * Errors latch: after the first access out of bounds every get returns 0 and every put does nothing. So a decoder reads
 * all fields and checks once. No function allocates. */
#ifndef COMMON_BYTES_H
#define COMMON_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reader {
    const uint8_t *data;
    size_t size, pos;
    bool bad;   /* an access went past the end, or reader_fail was called */
    bool ended; /* an access went past the end, and reader_fail was not called before */
};

struct writer {
    uint8_t *data; /* NULL: only counts */
    size_t cap, pos;
    bool bad; /* a value did not fit */
};

struct reader reader_of(const void *data, size_t size);
uint8_t get_u8(struct reader *r);
uint16_t get_u16(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
float get_f32(struct reader *r);
double get_f64(struct reader *r);
/* Pointer to the next `n` bytes, borrowed from the reader's data; NULL past the end. */
const uint8_t *get_bytes(struct reader *r, size_t n);
/* Read u16 length + bytes into out[cap], terminated; fails when they do not fit or hold a NUL. */
void get_str(struct reader *r, char *out, size_t cap);
void reader_fail(struct reader *r);
size_t reader_left(const struct reader *r);
/* True when no access failed and all bytes were read. */
bool reader_done(const struct reader *r);

struct writer writer_of(void *data, size_t cap);
/* Stores nothing: an encoder that writes to it leaves its size in `pos`. */
struct writer writer_counting(void);
void put_u8(struct writer *w, uint8_t v);
void put_u16(struct writer *w, uint16_t v);
void put_u32(struct writer *w, uint32_t v);
void put_u64(struct writer *w, uint64_t v);
void put_f32(struct writer *w, float v);
void put_f64(struct writer *w, double v);
void put_bytes(struct writer *w, const void *data, size_t n);
/* Write u16 length + bytes without the terminator; more than 65535 bytes set bad. */
void put_str(struct writer *w, const char *text);

#endif
