#include "worker/data_hash.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/base/units.h"
#include "common/os/fileio.h"

enum { BLOCK = 1 << 20, KNOWN_MAX = 64 << 20, LINE_MAX_BYTES = FILEIO_PATH_MAX + 96, LOWEST_PRIORITY = 19 };

/* Reads a block of a shard's tokens. False: the file is shorter now, or cannot be read. */
static bool read_block(const struct token_shard *shard, uint64_t at, uint8_t *block, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = pread(shard->fd, block + done, size - done, (off_t)(TOKENS_HEADER_BYTES + at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* The hash of all tokens of a shard, never 0; 0: stopped, or a read failed, which training reports. */
static uint64_t hash_shard(const struct token_shard *shard, uint8_t *block, const atomic_bool *stop)
{
    uint64_t bytes = shard->n_tokens * shard->width, hash = hash_mix(shard->width, shard->n_tokens);
    for (uint64_t at = 0; at < bytes; at += BLOCK) {
        size_t size = bytes - at < BLOCK ? (size_t)(bytes - at) : BLOCK;
        if ((stop && atomic_load(stop)) || !read_block(shard, at, block, size)) return 0;
        hash = hash_mix(hash, hash64(block, size));
    }
    return hash ? hash : 1;
}

/* Writes the part of a line after the hash, which identifies the content of a shard. False: unknown. */
static bool identity_of(const struct token_shard *shard, char out[LINE_MAX_BYTES])
{
    struct stat st;
    if (strchr(shard->path, '\n') || fstat(shard->fd, &st)) return false;
    snprintf(out, LINE_MAX_BYTES, " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n", (uint64_t)st.st_size,
             (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_ino,
             shard->path);
    return true;
}

/* The hash in front of this identity; 0: none. *known moves on: the lines are in the order of the shards. */
static uint64_t known_hash(const char **known, const char *identity)
{
    enum { DIGITS = 16 };
    char digits[DIGITS + 1];
    const char *at = strstr(*known, identity);
    if (!at || at - *known < DIGITS) return 0;
    memcpy(digits, at - DIGITS, DIGITS);
    digits[DIGITS] = 0;
    *known = at;
    char *end;
    uint64_t hash = strtoull(digits, &end, 16);
    return *end ? 0 : hash;
}

uint64_t data_hash_tokens(const struct tokens *tokens, const char **known, FILE *next, const atomic_bool *stop,
                          uint64_t *bytes_p)
{
    uint64_t all = 0;
    char identity[LINE_MAX_BYTES];
    uint8_t *block = mem_alloc(1, BLOCK);
    for (uint32_t i = 0; block && i < tokens->n_shards; i++) {
        const struct token_shard *shard = &tokens->shards[i];
        bool identified = identity_of(shard, identity);
        uint64_t hash = identified ? known_hash(known, identity) : 0;
        if (!hash) {
            hash = hash_shard(shard, block, stop);
            if (!hash) {
                mem_free(block);
                return 0;
            }
            *bytes_p += shard->n_tokens * shard->width;
        }
        if (identified && next) fprintf(next, "%016" PRIx64 "%s", hash, identity);
        all = hash_mix(all, hash);
    }
    mem_free(block);
    return !block ? 0 : all ? all : 1;
}

static void keep(const struct data_hash *h, const char *text, size_t size)
{
    struct err err = {0};
    if (file_write(h->path, text, size, &err) != STATUS_OK)
        log_debug("%s: the next start reads all shards again", err.msg);
}

static void *hash_main(void *arg)
{
    struct data_hash *h = arg;
    void *file = NULL;
    char *text = NULL;
    size_t known_size, size = 0;
    uint64_t bytes = 0, started = clock_monotonic_us();
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOWEST_PRIORITY); /* this thread only */
    if (!h->path[0] || file_read(h->path, KNOWN_MAX, &file, &known_size, NULL) != STATUS_OK) file = NULL;
    const char *known = file ? file : "";
    FILE *next = open_memstream(&text, &size);
    uint64_t train = data_hash_tokens(h->train, &known, next, &h->stop, &bytes);
    uint64_t val = train ? data_hash_tokens(h->val, &known, next, &h->stop, &bytes) : 0;
    bool whole = next && !fclose(next);
    if (train && val) {
        heartbeat_set_data(h->heartbeat, train, val);
        log_debug("hashed all tokens: read %s in %s", units_bytes((double)bytes).text,
                  units_duration((double)(clock_monotonic_us() - started) * 1e-6).text);
        if (whole && bytes && h->path[0]) keep(h, text, size);
    }
    free(text);
    mem_free(file);
    return NULL;
}

void data_hash_start(struct data_hash *h, const struct tokens *train, const struct tokens *val, const char *dir,
                     struct heartbeat *heartbeat)
{
    h->train = train;
    h->val = val;
    h->heartbeat = heartbeat;
    if (dir[0]) snprintf(h->path, sizeof h->path, "%s/data_hashes", dir);
    h->started = thread_start(&h->thread, hash_main, h) == 0;
    if (!h->started) log_warn("cannot start the thread that hashes the data: this worker's shards are not compared");
}

void data_hash_stop(struct data_hash *h)
{
    if (!h->started) return;
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    h->started = false;
}
