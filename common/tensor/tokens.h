/* Token shards in llm.c's .bin layout: a data set of them, and a writer.
 *
 * A shard is 256 little-endian int32 (magic, version, token count, zeros) followed by the tokens: magic 20240520
 * version 1 with uint16 tokens, or magic 20240801 version 7 with uint32 tokens. The file has no further bytes.
 * Version 8 of the latter has a loss mask: bit 31 marks a token that gives no loss as a target (atoll-prepare --chat).
 * A sample is a window of T + 1 tokens (T inputs and their T targets). Consecutive windows of a shard share the
 * boundary token, no window crosses shards, and the last tokens of a shard (fewer than T) are not used. The set has
 * n_samples(T) = sum over shards of floor((tokens - 1) / T) windows. */
#ifndef COMMON_TOKENS_H
#define COMMON_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"

/* Each shard is one open file. tokens_open raises the soft limit of open files as far as the hard limit allows. */
enum { TOKENS_HEADER_BYTES = 1024, TOKENS_SHARDS_MAX = 60000 };
#define TOKENS_MASK UINT32_C(0x80000000) /* in a masked shard: no loss on this token as a target */

/* Tokens of files are read with pread, not through a memory map: a shard that is truncated meanwhile is then an error
 * with a line, where a map would end the process by SIGBUS or give zeros. A replaced shard (rename, unlink) stays
 * readable. */
struct token_shard {
    const uint8_t *tokens; /* n_tokens * width bytes, little-endian, borrowed; NULL: they are in the file */
    int fd;                /* the open file, if tokens is NULL */
    uint64_t n_tokens;
    uint32_t width; /* bytes a token: 2 or 4 */
    bool masked;    /* tokens have TOKENS_MASK */
    uint64_t hash;  /* of its size and samples of its content; set by tokens_open */
    char *path;     /* owned; set by tokens_open */
};

struct tokens {
    struct token_shard *shards; /* in the order of their names */
    uint32_t n_shards;
    uint64_t n_tokens;
    uint64_t hash; /* of the shards' hashes: equal for two copies of a data set */
};

/* Parse a shard of `size` bytes from data, which the shard borrows. Only the header is read. CORRUPT with a reason when
 * it breaks a rule above. `where` names it in errors. */
enum status token_shard_parse(struct token_shard *shard, const void *data, size_t size, const char *where,
                              struct err *err) MUST_CHECK;
/* Open every shard that matches the glob pattern. NOTFOUND when none matches. Other errors: CORRUPT, MISMATCH (widths
 * differ), UNSUPPORTED (more than TOKENS_SHARDS_MAX), INVALID, IO, NOMEM. Nothing stays open on failure. */
enum status tokens_open(struct tokens *tokens, const char *pattern, struct err *err) MUST_CHECK;
/* The same, also for shards with a loss mask, which tokens_open refuses: UNSUPPORTED. MISMATCH: only some have one. */
enum status tokens_open_masked(struct tokens *tokens, const char *pattern, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void tokens_close(struct tokens *tokens);
/* Number of windows of T + 1 tokens; 0 when every shard is too short or T is 0. */
uint64_t tokens_samples(const struct tokens *tokens, uint32_t t);
/* Number of non-empty shards of `b` that `a` contains as well, compared by their hashes. */
uint32_t tokens_shared(const struct tokens *a, const struct tokens *b);
/* INVALID, with shard and position, when a token is outside the vocabulary. In sets of more than `read_max` bytes only
 * samples spread over each shard are checked. CORRUPT, IO: a shard was truncated or cannot be read. */
enum status tokens_check(const struct tokens *tokens, uint32_t vocab_size, uint64_t read_max,
                         struct err *err) MUST_CHECK;
/* Copy window `index` < tokens_samples(t) to out[t + 1]; *largest_p: its largest token. Tokens of a masked set have
 * TOKENS_MASK in `out`, but not in *largest_p. The caller compares that with its vocabulary and gets the error message
 * from tokens_check_window. CORRUPT, IO: as tokens_check. Threads may read at the same time. */
enum status tokens_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t *out, uint32_t *largest_p,
                          struct err *err) MUST_CHECK;
enum status tokens_check_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t vocab_size,
                                struct err *err) MUST_CHECK;

/* Streaming writer of DIR/NAME_000000.bin, DIR/NAME_000001.bin, ...: it starts a new shard after shard_tokens tokens.
 * Each shard appears when it is complete. */
struct token_writer {
    struct file_out out; /* fd -1 between shards */
    char dir[1024], name[64];
    uint32_t width, n_shards;
    uint64_t shard_tokens; /* at most 2^31 - 1 */
    uint64_t in_shard, n_tokens;
};

/* width: 2 or 4 bytes; shard_tokens 0: the maximum. The folder must exist. Old shards of this name are removed, so that
 * old and new shards never mix. INVALID, LIMIT (name too long), IO. */
enum status token_writer_open(struct token_writer *w, const char *dir, const char *name, uint32_t width,
                              uint64_t shard_tokens, struct err *err) MUST_CHECK;
/* INVALID when a token does not fit the width. */
enum status token_writer_put(struct token_writer *w, const uint32_t *tokens, size_t n, struct err *err) MUST_CHECK;
/* Complete the last shard. A data set without tokens is one shard of 0 tokens. */
enum status token_writer_close(struct token_writer *w, struct err *err) MUST_CHECK;
/* Move the shards of a closed writer to `dir`, where they replace older shards of this name. Readers that have older
 * shards open keep them. IO, LIMIT. */
enum status token_writer_move(struct token_writer *w, const char *dir, struct err *err) MUST_CHECK;
/* Remove the written shards. */
void token_writer_abort(struct token_writer *w);

#endif
