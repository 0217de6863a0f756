/* Checksums and fingerprints.
 *
 * - CRC32C (Castagnoli, RFC 3720 appendix B.4) detects damaged bytes in transit and on disk.
 * - 64-bit XXH3 fingerprints parameters, layouts and configurations.
 * - Neither resists an adversary; CURVE does that on the wire.
 * - All functions are thread-safe and never fail. */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

struct pool;

/* CRC32C of data[size], continued from `crc` (0 at the start). Uses the instructions of SSE4.2 and PCLMUL when the CPU
 * has both. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
/* The same by table, for CPUs without these instructions; public so that tests compare the two. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t size);
/* The CRC32C of A and B end to end, given those of A and B; `size`: bytes of B. Called with the checksum of the whole
 * in place of B's, it gives B's. It reads no data: some microseconds. */
uint32_t crc32c_join(uint32_t a, uint32_t b, size_t size);
uint64_t hash64(const void *data, size_t size);
/* Combine fingerprints in order: the hash of a list is hash_mix over its members, starting from 0. */
uint64_t hash_mix(uint64_t acc, uint64_t member);

/* Hash of x[n], a fragment of theta.
 *
 * - Each block of HASH_BLOCK floats (the last one may be shorter) is hashed by hash64 of its little-endian bytes;
 *   hash_mix combines these in order, starting from n. This is a Merkle tree of depth one (Merkle, "A digital signature
 *   based on a conventional encryption function", CRYPTO '87).
 * - The result is the same for any number of threads. Hashing blocks of 64 KiB costs as much as hashing the whole at
 *   once, and the smallest fragments worth sharing have hundreds of blocks.
 * - pool NULL: only the calling thread works. Do not call it inside a job of the pool. */
enum { HASH_BLOCK = 1 << 14 };
uint64_t hash_floats(struct pool *pool, const float *x, size_t n);

#endif
