#include "worker/train_data.h"

#include <stdio.h>
#include <string.h>

static enum status open_tokens(struct tokens *tokens, const char *pattern, const char *key, struct err *err)
{
    if (!pattern[0])
        return err_set(err, STATUS_INVALID,
                       "no token shards to %s: give --data.%s=GLOB (or ATOLL_DATA_%s); "
                       "`atoll prepare` makes them",
                       !strcmp(key, "train") ? "train on" : "evaluate on", key,
                       !strcmp(key, "train") ? "TRAIN" : "VAL");
    enum status status = tokens_open(tokens, pattern, err);
    if (status == STATUS_OK) return STATUS_OK;
    err_prefix(err, "data.%s", key);
    if (status == STATUS_NOTFOUND) err->code = STATUS_INVALID; /* a wrong setting */
    return err->code;
}

/* Default of data.val: data.train with "val" for "train" in the file name. */
static void guess_val(struct config *config)
{
    const char *slash = strrchr(config->data.train, '/'), *name = slash ? slash + 1 : config->data.train;
    const char *at = strstr(name, "train");
    if (config->data.val[0] || !at) return;
    snprintf(config->data.val, sizeof config->data.val, "%.*sval%s", (int)(at - config->data.train), config->data.train,
             at + strlen("train"));
}

enum status train_data_open(struct tokens *train, struct tokens *val, struct config *config, struct err *err)
{
    guess_val(config);
    TRY(open_tokens(train, config->data.train, "train", err));
    enum status status = open_tokens(val, config->data.val, "val", err);
    if (status != STATUS_OK) tokens_close(train);
    return status;
}

/* Checks all tokens, or samples of them if the shards have more than read_max bytes. */
static enum status check_tokens(const struct tokens *tokens, const char *key, uint64_t read_max,
                                const struct config *config, struct err *err)
{
    enum status status = tokens_check(tokens, config->model.vocab_size, read_max, err);
    if (status != STATUS_OK) err_prefix(err, "data.%s", key);
    return status;
}

enum status train_data_check(const struct tokens *train, const struct tokens *val, const struct config *config,
                             struct err *err)
{
    uint32_t seq = config->model.block_size;
    /* 1 GiB takes a second or two to read. The last evaluation reads all validation data anyway. */
    TRY(check_tokens(train, "train", 1u << 30, config, err));
    TRY(check_tokens(val, "val", UINT64_MAX, config, err));
    bool trains = tokens_samples(train, seq) > 0;
    if (trains && tokens_samples(val, seq)) return STATUS_OK;
    return err_set(err, STATUS_INVALID,
                   "%s has no shard of more than %u tokens: use more text, %sa smaller model.block_size",
                   trains ? config->data.val : config->data.train, seq,
                   trains ? "a larger --val-fraction of atoll prepare, or " : "or ");
}
