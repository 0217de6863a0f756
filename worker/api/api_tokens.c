#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/tensor/tokens.h"
#include "worker/api/api_impl.h"

enum { PATTERN_MAX = 1 << 14 };

struct atoll_tokens {
    struct tokens tokens;
    uint32_t seq;
    uint64_t samples;
};

enum atoll_status atoll_tokens_open(struct atoll_tokens **t_p, const char *pattern, uint32_t sample_tokens,
                                    struct atoll_data *data, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    if (!t_p) return api_refuse(error, ATOLL_INVALID, "atoll_tokens_open: the place for the token shards is NULL");
    *t_p = NULL;
    api_log_init();
    if (!pattern || !sample_tokens)
        return api_refuse(error, ATOLL_INVALID, "atoll_tokens_open: give a pattern, and sample_tokens of 1 or more");
    if (!data) return api_refuse(error, ATOLL_INVALID, "atoll_tokens_open: data is NULL");
    if (api_check_text("the pattern of token shards", pattern, PATTERN_MAX, false, &err) != STATUS_OK)
        return api_error(error, err.code, &err);
    struct atoll_tokens *t = mem_alloc(1, sizeof *t);
    if (!t) return api_refuse(error, ATOLL_NOMEM, "no memory to open %s", pattern);
    enum status status = tokens_open_masked(&t->tokens, pattern, &err);
    if (status != STATUS_OK) {
        mem_free(t);
        return api_error(error, status, &err);
    }
    t->seq = sample_tokens;
    t->samples = tokens_samples(&t->tokens, sample_tokens);
    *data = (struct atoll_data){.hash = t->tokens.hash, .samples = t->samples, .sample_tokens = sample_tokens};
    *t_p = t;
    if (t->samples) return ATOLL_OK;
    atoll_tokens_close(t);
    *t_p = NULL;
    return api_refuse(error, ATOLL_INVALID,
                      "%s has no shard of more than %" PRIu32 " tokens: use more text, or shorter "
                      "samples",
                      pattern, sample_tokens);
}

enum atoll_status atoll_tokens_read(const struct atoll_tokens *t, uint64_t index, uint32_t *out,
                                    struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    uint32_t largest;
    if (!t || !out) return api_refuse(error, ATOLL_INVALID, "atoll_tokens_read: an argument is NULL");
    if (index >= t->samples)
        return api_refuse(error, ATOLL_INVALID, "sample %" PRIu64 " does not exist: the data set has %" PRIu64, index,
                          t->samples);
    enum status status = tokens_window(&t->tokens, t->seq, index, out, &largest, &err);
    return status == STATUS_OK ? ATOLL_OK : api_error(error, status == STATUS_CORRUPT ? STATUS_IO : status, &err);
}

void atoll_tokens_close(struct atoll_tokens *t)
{
    API_CALL;
    if (!t) return;
    tokens_close(&t->tokens);
    mem_free(t);
}
