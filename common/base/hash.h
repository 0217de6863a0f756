/* Checksums and fingerprints. CRC32C (Castagnoli, RFC 3720 appendix B.4) guards bytes in transit and on disk; 64-bit
 * XXH3 fingerprints parameters, layouts and configs. Neither resists an adversary; CURVE does that on the wire. */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

struct pool;

/* CRC32C of data, continuing from `crc` (0 at the start). Uses the instruction of SSE4.2 (and PCLMUL) when the CPU
 * has it. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
/* The same by table, what CPUs without the instruction use; public so that tests compare the two. */
uint32_t crc32c_portable(uint32_t crc, const void *data, size_t size);
uint64_t hash64(const void *data, size_t size);
/* Combine fingerprints in order: hash of a list is hash_mix over its members, starting from 0. */
uint64_t hash_mix(uint64_t acc, uint64_t member);

/* The hash of a fragment of theta: of every block of HASH_BLOCK floats, the last one as long as it is, hash64 of its
 * little-endian bytes; hash_mix over these in order, starting from n. A Merkle tree of depth one (Merkle, "A digital
 * signature based on a conventional encryption function", CRYPTO '87): its leaves can be made by any number of threads,
 * and what comes out is the same with all of them. Blocks of 64 KiB cost what the whole in one piece does, and the
 * smallest fragments that are worth sharing out have hundreds. pool NULL: the caller alone. Not from inside a job. */
enum { HASH_BLOCK = 1 << 14 };
uint64_t hash_floats(struct pool *pool, const float *x, size_t n);

#endif
