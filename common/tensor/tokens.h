/* Token shards in llm.c's .bin layout, and the data set made of them.
 *
 * A shard is 256 little-endian int32 (magic, version, token count, zeros) followed by the tokens: magic 20240520
 * version 1 with uint16 tokens, or magic 20240801 version 7 with uint32 tokens. The file is exactly that long.
 *
 * A sample is a window of T + 1 tokens (T inputs and their T targets); consecutive windows of a shard share the
 * boundary token, no window crosses shards, and what is left at a shard's end (fewer than T tokens) is not used. The
 * set has n_samples(T) = sum over shards of floor((tokens - 1) / T) windows. */
#ifndef COMMON_TOKENS_H
#define COMMON_TOKENS_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"

/* Each shard is a map of its own, and Linux lets a process have 65530 (vm.max_map_count): those of the libraries, of
 * large allocations and of the other set of shards, too. */
enum { TOKENS_HEADER_BYTES = 1024, TOKENS_SHARDS_MAX = 60000 };

struct token_shard {
    const uint8_t *tokens; /* n_tokens * width bytes, little-endian, borrowed */
    uint64_t n_tokens;
    uint32_t width; /* bytes a token: 2 or 4 */
    uint64_t hash;  /* of its size and of content sampled at fixed places; set by tokens_open */
    char *path;     /* set by tokens_open, which owns it */
};

struct tokens {
    struct token_shard *shards; /* in the order of their names */
    struct file_map *maps;
    uint32_t n_shards;
    uint64_t n_tokens;
    uint64_t hash; /* of those of the shards: two copies of a data set agree */
};

/* Read one shard's header from memory. CORRUPT with a reason when it breaks any rule above. `where` names it. */
enum status token_shard_parse(struct token_shard *shard, const void *data, size_t size, const char *where,
                              struct err *err) MUST_CHECK;
/* Map every shard the glob pattern names. NOTFOUND when it names none. Nothing stays open on failure. */
enum status tokens_open(struct tokens *tokens, const char *pattern, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void tokens_close(struct tokens *tokens);
/* Windows of T + 1 tokens; 0 when every shard is too short (or T is 0). */
uint64_t tokens_samples(const struct tokens *tokens, uint32_t t);
/* How many shards of `b` that hold tokens are in `a`, too, by their hashes. */
uint32_t tokens_shared(const struct tokens *a, const struct tokens *b);
/* INVALID, with shard and position, when a token is outside the vocabulary. Sets of more than `read_max` bytes are
 * looked at only in places spread over their shards. */
enum status tokens_check(const struct tokens *tokens, uint32_t vocab_size, uint64_t read_max,
                         struct err *err) MUST_CHECK;
/* Copy window `index` < tokens_samples(t) to out[t + 1] and return the largest token in it (for the caller's check
 * against its vocabulary, which tokens_check_window puts into words). */
uint32_t tokens_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t *out);
enum status tokens_check_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t vocab_size,
                                struct err *err) MUST_CHECK;

/* Streaming writer of DIR/NAME_000000.bin, DIR/NAME_000001.bin, ...: a new shard after shard_tokens tokens. Each shard
 * appears when it is complete. */
struct token_writer {
    struct file_out out; /* fd -1 between shards */
    char dir[1024], name[64];
    uint32_t width, n_shards;
    uint64_t shard_tokens; /* at most 2^31 - 1 */
    uint64_t in_shard, n_tokens;
};

/* width 2 or 4; shard_tokens 0 = the largest allowed. The folder must exist. Shards of an earlier data set of this name
 * are removed: those of two sets side by side would be one that nobody made. */
enum status token_writer_open(struct token_writer *w, const char *dir, const char *name, uint32_t width,
                              uint64_t shard_tokens, struct err *err) MUST_CHECK;
/* INVALID when a token does not fit the width. */
enum status token_writer_put(struct token_writer *w, const uint32_t *tokens, size_t n, struct err *err) MUST_CHECK;
/* Complete the last shard. A set without tokens is one shard of 0 tokens. */
enum status token_writer_close(struct token_writer *w, struct err *err) MUST_CHECK;
/* Removes what was written. */
void token_writer_abort(struct token_writer *w);

#endif
