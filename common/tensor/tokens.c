#include "common/tensor/tokens.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"

enum {
    MAGIC_U16 = 20240520,
    VERSION_U16 = 1,
    MAGIC_U32 = 20240801,
    VERSION_U32 = 7,
    VERSION_MASKED = 8,
    SHARD_TOKENS_MAX = 0x7fffffff, /* the count is an int32 */
    HASH_PIECES = 64,              /* samples of a shard that enter its hash */
    HASH_PIECE_BYTES = 4096,       /* bytes of each */
    PUT_TOKENS = 4096,
    READ_BYTES = 1 << 16, /* one read of a shard; a multiple of each width */
    OTHER_FILES = 256,    /* open files beside the shards */
};

/* --- reading ------------------------------------------------------------------------------------------------------ */

enum status token_shard_parse(struct token_shard *shard, const void *data, size_t size, const char *where,
                              struct err *err)
{
    struct reader r = reader_of(data, size);
    uint32_t magic = get_u32(&r), version = get_u32(&r), count = get_u32(&r);
    if (size < TOKENS_HEADER_BYTES)
        return err_set(err, STATUS_CORRUPT, "%s: not a token shard: %zu bytes are less than its header of %d", where,
                       size, TOKENS_HEADER_BYTES);
    if (magic != MAGIC_U16 && magic != MAGIC_U32)
        return err_set(err, STATUS_CORRUPT,
                       "%s: not a token shard: starts with %u, expected %d or %d; make shards with atoll prepare",
                       where, magic, MAGIC_U16, MAGIC_U32);
    uint32_t width = magic == MAGIC_U16 ? 2 : 4, expected = magic == MAGIC_U16 ? VERSION_U16 : VERSION_U32;
    bool masked = magic == MAGIC_U32 && version == VERSION_MASKED;
    if (version != expected && !masked)
        return err_set(err, STATUS_CORRUPT, "%s: token shard version %u, this program reads %u", where, version,
                       expected);
    if (count > SHARD_TOKENS_MAX) return err_set(err, STATUS_CORRUPT, "%s: negative token count in the header", where);
    uint64_t whole = TOKENS_HEADER_BYTES + (uint64_t)count * width;
    if (size != whole)
        return err_set(err, STATUS_CORRUPT, "%s: %zu bytes, but its header (%u tokens) requires %llu: %s", where, size,
                       count, (unsigned long long)whole, size < whole ? "truncated, copy it again" : "damaged");
    *shard = (struct token_shard){
        .tokens = (const uint8_t *)data + TOKENS_HEADER_BYTES, .n_tokens = count, .width = width, .masked = masked};
    return STATUS_OK;
}

/* Copies bytes [at, at + n) of the tokens. */
static enum status read_bytes(const struct token_shard *shard, uint64_t at, void *dst, size_t n, struct err *err)
{
    assert(at <= shard->n_tokens * shard->width && n <= shard->n_tokens * shard->width - at);
    if (shard->tokens) {
        memcpy(dst, shard->tokens + at, n);
        return STATUS_OK;
    }
    for (size_t got = 0; got < n;) {
        ssize_t more = pread(shard->fd, (char *)dst + got, n - got, (off_t)(TOKENS_HEADER_BYTES + at + got));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) return err_set(err, STATUS_IO, "cannot read %.300s: %s", shard->path, strerror(errno));
        if (more == 0)
            return err_set(err, STATUS_CORRUPT,
                           "%.300s was truncated while it was in use: restore it, then start this program again",
                           shard->path);
        got += (size_t)more;
    }
    return STATUS_OK;
}

/* room: [HASH_PIECES * HASH_PIECE_BYTES]. */
static enum status hash_shard(struct token_shard *shard, uint8_t *room, struct err *err)
{
    uint64_t bytes = shard->n_tokens * shard->width, acc = hash_mix(shard->width, shard->n_tokens);
    bool whole = bytes <= (uint64_t)HASH_PIECES * HASH_PIECE_BYTES;
    uint64_t n = whole ? bytes : HASH_PIECE_BYTES, pieces = whole ? 1 : HASH_PIECES;
    uint64_t stride = whole ? 0 : (bytes - HASH_PIECE_BYTES) / (HASH_PIECES - 1);
    assert((pieces - 1) * stride + n <= bytes);
    for (uint64_t i = 0; i < pieces; i++) {
        TRY(read_bytes(shard, i * stride, room, n, err));
        acc = hash_mix(acc, hash64(room, n));
    }
    shard->hash = acc;
    return STATUS_OK;
}

static enum status open_shard(struct token_shard *shard, const char *path, struct err *err)
{
    struct token_shard parsed;
    uint8_t head[TOKENS_HEADER_BYTES] = {0};
    struct stat st;
    shard->path = mem_strdup(path);
    if (!shard->path) return err_set(err, STATUS_NOMEM, "no memory for the token shard %.300s", path);
    TRY(file_open_plain(path, O_RDONLY, 0, &shard->fd, err));
    if (fstat(shard->fd, &st) || pread(shard->fd, head, sizeof head, 0) < 0)
        return err_set(err, STATUS_IO, "cannot read %.300s: %s", path, strerror(errno));
    TRY(token_shard_parse(&parsed, head, (size_t)st.st_size, path, err));
    shard->n_tokens = parsed.n_tokens;
    shard->width = parsed.width;
    shard->masked = parsed.masked;
    return STATUS_OK;
}

/* Raises the soft limit of open files for n shards. Without success the open that fails names the cause. */
static void make_room(size_t n)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= n + OTHER_FILES) return;
    limit.rlim_cur = limit.rlim_max < n + OTHER_FILES ? limit.rlim_max : n + OTHER_FILES;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static enum status open_paths(struct tokens *tokens, char **paths, size_t n, bool masked, uint8_t *room,
                              struct err *err)
{
    tokens->shards = mem_alloc(n, sizeof *tokens->shards);
    if (!tokens->shards || !room) return err_set(err, STATUS_NOMEM, "no memory for %zu token shards", n);
    make_room(n);
    for (size_t i = 0; i < n; i++) {
        if (paths[i][strlen(paths[i]) - 1] == '/')
            return err_set(err, STATUS_INVALID, "%s is a folder: name its shards, for example %strain_*.bin", paths[i],
                           paths[i]);
        struct token_shard *shard = &tokens->shards[i];
        *shard = (struct token_shard){.fd = -1};
        tokens->n_shards++;
        TRY(open_shard(shard, paths[i], err));
        if (shard->width != tokens->shards[0].width)
            return err_set(err, STATUS_MISMATCH,
                           "%s has %u-byte tokens, %s has %u-byte tokens: a data set has one width", paths[i],
                           shard->width, paths[0], tokens->shards[0].width);
        if (shard->masked != tokens->shards[0].masked)
            return err_set(err, STATUS_MISMATCH, "only one of %s and %s has a loss mask: a data set has one format",
                           paths[0], paths[i]);
        if (shard->masked && !masked)
            return err_set(err, STATUS_UNSUPPORTED,
                           "%s has a loss mask (atoll prepare --chat), which atoll-worker cannot apply: train with the "
                           "Python package, or prepare the text without --chat",
                           paths[i]);
        TRY(hash_shard(shard, room, err));
        tokens->n_tokens += shard->n_tokens;
        tokens->hash = hash_mix(tokens->hash, shard->hash);
    }
    return STATUS_OK;
}

/* glob passes no context to its error function. */
static _Thread_local char unreadable[400];

static int note_unreadable(const char *path, int error)
{
    if (error != ENOENT && error != ENOTDIR)
        snprintf(unreadable, sizeof unreadable, "%.300s: %s", path, strerror(error));
    return 0;
}

static enum status open_pattern(struct tokens *tokens, const char *pattern, bool masked, struct err *err)
{
    *tokens = (struct tokens){0};
    glob_t found;
    unreadable[0] = '\0';
    int rc = glob(pattern, GLOB_BRACE | GLOB_TILDE | GLOB_MARK, note_unreadable,
                  &found); /* GLOB_MARK: folders end with a slash */
    if (rc == GLOB_NOMATCH && unreadable[0])
        return err_set(err, STATUS_IO, "no token shards match '%s': cannot read the folder %s", pattern, unreadable);
    if (rc == GLOB_NOMATCH)
        return err_set(err, STATUS_NOTFOUND, "no token shards match '%s': make them with atoll prepare", pattern);
    if (rc != 0) return err_set(err, STATUS_IO, "cannot list '%s': out of memory or a read error", pattern);
    uint8_t *room = mem_alloc(HASH_PIECES, HASH_PIECE_BYTES);
    enum status status = found.gl_pathc > TOKENS_SHARDS_MAX
                             ? err_set(err, STATUS_UNSUPPORTED,
                                       "'%s' matches %zu files, more than %d: make larger "
                                       "shards, see atoll prepare --shard-tokens",
                                       pattern, (size_t)found.gl_pathc, TOKENS_SHARDS_MAX)
                             : open_paths(tokens, found.gl_pathv, found.gl_pathc, masked, room, err);
    globfree(&found);
    mem_free(room);
    if (status != STATUS_OK) tokens_close(tokens);
    return status;
}

enum status tokens_open(struct tokens *tokens, const char *pattern, struct err *err)
{
    return open_pattern(tokens, pattern, false, err);
}

enum status tokens_open_masked(struct tokens *tokens, const char *pattern, struct err *err)
{
    return open_pattern(tokens, pattern, true, err);
}

void tokens_close(struct tokens *tokens)
{
    for (uint32_t i = 0; i < tokens->n_shards; i++) {
        if (tokens->shards[i].fd >= 0) close(tokens->shards[i].fd);
        mem_free(tokens->shards[i].path);
    }
    mem_free(tokens->shards);
    *tokens = (struct tokens){0};
}

static uint64_t shard_samples(const struct token_shard *shard, uint32_t t)
{
    return shard->n_tokens && t ? (shard->n_tokens - 1) / t : 0;
}

uint32_t tokens_shared(const struct tokens *a, const struct tokens *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_shards; i++) {
        bool found = false;
        for (uint32_t k = 0; k < a->n_shards && !found; k++) found = a->shards[k].hash == b->shards[i].hash;
        n += found && b->shards[i].n_tokens;
    }
    return n;
}

uint64_t tokens_samples(const struct tokens *tokens, uint32_t t)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < tokens->n_shards; i++) n += shard_samples(&tokens->shards[i], t);
    return n;
}

/* The shard of window *index; *index becomes the window's index in that shard. */
static const struct token_shard *shard_of(const struct tokens *tokens, uint32_t t, uint64_t *index)
{
    const struct token_shard *shard = tokens->shards;
    for (uint64_t n; *index >= (n = shard_samples(shard, t)); shard++) {
        *index -= n;
        assert(shard + 1 < tokens->shards + tokens->n_shards); /* index < tokens_samples */
    }
    return shard;
}

enum status tokens_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t *out, uint32_t *largest_p,
                          struct err *err)
{
    const struct token_shard *shard = shard_of(tokens, t, &index);
    uint64_t at = index * t * shard->width, bytes = ((uint64_t)t + 1) * shard->width;
    uint8_t piece[READ_BYTES];
    uint32_t largest = 0, token_bits = shard->masked ? ~TOKENS_MASK : UINT32_MAX;
    for (uint32_t k = 0; bytes;) {
        size_t n = bytes < sizeof piece ? (size_t)bytes : sizeof piece;
        TRY(read_bytes(shard, at, piece, n, err));
        struct reader r = reader_of(piece, n);
        for (uint32_t end = k + (uint32_t)(n / shard->width); k < end; k++) {
            out[k] = shard->width == 2 ? get_u16(&r) : get_u32(&r);
            if ((out[k] & token_bits) > largest) largest = out[k] & token_bits;
        }
        assert(reader_done(&r));
        at += n;
        bytes -= n;
    }
    *largest_p = largest;
    return STATUS_OK;
}

/* --- against a vocabulary ----------------------------------------------------------------------------------------- */

static uint32_t token_at(const uint8_t *p, uint32_t width)
{
    uint32_t low = p[0] | (uint32_t)p[1] << 8;
    return width == 2 ? low : low | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Two loops by width, so that compilers vectorize them. */
static uint32_t largest_u16(const uint8_t *p, uint64_t n)
{
    uint16_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t token = (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
        largest = token > largest ? token : largest;
    }
    return largest;
}

static uint32_t largest_u32(const uint8_t *p, uint64_t n)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t token =
            p[4 * i] | (uint32_t)p[4 * i + 1] << 8 | (uint32_t)p[4 * i + 2] << 16 | (uint32_t)p[4 * i + 3] << 24;
        largest = token > largest ? token : largest;
    }
    return largest;
}

static enum status check_part(const struct token_shard *shard, uint64_t from, uint64_t n, uint32_t vocab_size,
                              struct err *err)
{
    uint8_t piece[READ_BYTES];
    const uint32_t width = shard->width;
    assert(from <= shard->n_tokens && n <= shard->n_tokens - from);
    for (uint64_t end = from + n; from < end; from += n) {
        n = end - from < READ_BYTES / width ? end - from : READ_BYTES / width;
        TRY(read_bytes(shard, from * width, piece, n * width, err));
        if ((width == 2 ? largest_u16(piece, n) : largest_u32(piece, n)) < vocab_size) continue;
        uint64_t i = 0;
        while (token_at(piece + i * width, width) < vocab_size) i++;
        return err_set(err, STATUS_INVALID,
                       "%.300s: token %u at position %llu, but model.vocab_size is %u: wrong data set or wrong model",
                       shard->path ? shard->path : "the data set", token_at(piece + i * width, width),
                       (unsigned long long)from + i, vocab_size);
    }
    return STATUS_OK;
}

enum status tokens_check(const struct tokens *tokens, uint32_t vocab_size, uint64_t read_max, struct err *err)
{
    enum { PIECES = 64, PIECE_TOKENS = 2048 };
    for (uint32_t i = 0; i < tokens->n_shards; i++) {
        const struct token_shard *shard = &tokens->shards[i];
        uint64_t n = shard->n_tokens, stride = n / PIECES;
        if (shard->width == 2 && vocab_size > UINT16_MAX) continue;
        if (tokens->n_tokens * shard->width <= read_max || stride <= PIECE_TOKENS) {
            TRY(check_part(shard, 0, n, vocab_size, err));
            continue;
        }
        for (uint64_t k = 0; k < PIECES; k++) TRY(check_part(shard, k * stride, PIECE_TOKENS, vocab_size, err));
    }
    return STATUS_OK;
}

enum status tokens_check_window(const struct tokens *tokens, uint32_t t, uint64_t index, uint32_t vocab_size,
                                struct err *err)
{
    const struct token_shard *shard = shard_of(tokens, t, &index);
    return check_part(shard, index * t, (uint64_t)t + 1, vocab_size, err);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void shard_path(const struct token_writer *w, uint32_t index, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/%s_%06u.bin", w->dir, w->name, index);
}

/* Removes shards from the last to the first: after an interruption the next call still finds the rest. */
static enum status remove_shards(const struct token_writer *w, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    uint32_t n = 0;
    for (shard_path(w, 0, path); file_exists(path);) shard_path(w, ++n, path);
    temporary_sweep(path); /* the temporary of an unfinished shard */
    while (n) {
        shard_path(w, --n, path);
        if (unlink(path)) return err_set(err, STATUS_IO, "cannot remove old shard %s: %s", path, strerror(errno));
    }
    return STATUS_OK;
}

enum status token_writer_open(struct token_writer *w, const char *dir, const char *name, uint32_t width,
                              uint64_t shard_tokens, struct err *err)
{
    *w = (struct token_writer){.out.fd = -1, .width = width, .shard_tokens = shard_tokens};
    if (!shard_tokens || shard_tokens > SHARD_TOKENS_MAX) w->shard_tokens = SHARD_TOKENS_MAX;
    if (width != 2 && width != 4) return err_set(err, STATUS_INVALID, "token width %u: expected 2 or 4 bytes", width);
    if (strlen(dir) >= sizeof w->dir || strlen(name) >= sizeof w->name)
        return err_set(err, STATUS_LIMIT, "the name of the token folder is too long: %s", dir);
    memcpy(w->dir, dir, strlen(dir) + 1);
    memcpy(w->name, name, strlen(name) + 1);
    return remove_shards(w, err);
}

static enum status shard_begin(struct token_writer *w, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    static const uint8_t empty[TOKENS_HEADER_BYTES];
    shard_path(w, w->n_shards, path);
    TRY(file_out_open(&w->out, path, err));
    w->n_shards++;
    w->in_shard = 0;
    return file_out_put(&w->out, empty, sizeof empty, err);
}

static enum status shard_end(struct token_writer *w, struct err *err)
{
    assert(w->out.fd >= 0 && w->in_shard <= w->shard_tokens && w->shard_tokens <= SHARD_TOKENS_MAX);
    uint8_t head[12];
    struct writer b = writer_of(head, sizeof head);
    put_u32(&b, w->width == 2 ? MAGIC_U16 : MAGIC_U32);
    put_u32(&b, w->width == 2 ? VERSION_U16 : VERSION_U32);
    put_u32(&b, (uint32_t)w->in_shard);
    TRY(file_out_put_head(&w->out, head, sizeof head, err));
    return file_out_commit(&w->out, err);
}

enum status token_writer_put(struct token_writer *w, const uint32_t *tokens, size_t n, struct err *err)
{
    uint8_t piece[PUT_TOKENS * 4];
    while (n) {
        if (w->out.fd < 0) TRY(shard_begin(w, err));
        assert(w->in_shard < w->shard_tokens);
        uint64_t room = w->shard_tokens - w->in_shard;
        size_t take = n < PUT_TOKENS ? n : PUT_TOKENS;
        if (take > room) take = (size_t)room;
        struct writer b = writer_of(piece, sizeof piece);
        for (size_t i = 0; i < take; i++) {
            if (w->width == 2 && tokens[i] > 0xffff)
                return err_set(err, STATUS_INVALID, "token %u does not fit into 16 bits", tokens[i]);
            if (w->width == 2)
                put_u16(&b, (uint16_t)tokens[i]);
            else
                put_u32(&b, tokens[i]);
        }
        assert(!b.bad && b.pos == take * w->width);
        TRY(file_out_put(&w->out, piece, b.pos, err));
        tokens += take;
        n -= take;
        w->in_shard += take;
        w->n_tokens += take;
        if (w->in_shard == w->shard_tokens) TRY(shard_end(w, err));
    }
    return STATUS_OK;
}

enum status token_writer_close(struct token_writer *w, struct err *err)
{
    if (w->out.fd < 0 && !w->n_shards) TRY(shard_begin(w, err));
    return w->out.fd >= 0 ? shard_end(w, err) : STATUS_OK;
}

enum status token_writer_move(struct token_writer *w, const char *dir, struct err *err)
{
    char from[FILEIO_PATH_MAX], to[FILEIO_PATH_MAX];
    const struct token_writer old = *w;
    assert(w->out.fd < 0);
    if (strlen(dir) >= sizeof w->dir)
        return err_set(err, STATUS_LIMIT, "the name of the token folder is too long: %s", dir);
    memcpy(w->dir, dir, strlen(dir) + 1);
    TRY(remove_shards(w, err));
    for (uint32_t i = 0; i < w->n_shards; i++) {
        shard_path(&old, i, from);
        shard_path(w, i, to);
        if (rename(from, to)) return err_set(err, STATUS_IO, "cannot rename %.300s: %s", from, strerror(errno));
    }
    return STATUS_OK;
}

void token_writer_abort(struct token_writer *w)
{
    file_out_abort(&w->out);
    if (remove_shards(w, NULL) != STATUS_OK)
        log_warn("cannot remove all shards %s/%s_*.bin: remove them by hand", w->dir, w->name);
}
