#include "worker/replica/batch.h"

#include <assert.h>

#include "common/base/rng.h"

enum status batch_source_init(struct batch_source *source, const struct tokens *tokens, uint32_t seq,
                              uint32_t vocab_size, uint64_t seed, bool in_order, struct err *err)
{
    uint64_t n = tokens_samples(tokens, seq);
    if (!n)
        return err_set(err, STATUS_INVALID,
                       "the data set has %llu tokens, fewer than one sequence of %u tokens and its next token: add "
                       "text, or lower model.block_size",
                       (unsigned long long)tokens->n_tokens, seq);
    if (vocab_size > INT32_MAX)
        return err_set(err, STATUS_INVALID, "model.vocab_size %u is too large: give at most 2147483647", vocab_size);
    *source = (struct batch_source){
        .tokens = tokens, .seed = seed, .n_samples = n, .seq = seq, .vocab_size = vocab_size, .in_order = in_order};
    return STATUS_OK;
}

uint64_t batch_window(const struct batch_source *source, uint64_t k)
{
    uint64_t n = source->n_samples;
    assert(n > 0);
    return source->in_order ? k % n : rng_permute(source->seed, k / n, k % n, n);
}

enum status batch_fill(const struct batch_source *source, const uint64_t *counters, size_t n, size_t rows,
                       int32_t *tokens, int32_t *targets, uint32_t *scratch, struct err *err)
{
    size_t seq = source->seq;
    assert(n <= rows);
    for (size_t i = 0; i < rows; i++, tokens += seq, targets += seq) {
        if (i >= n) {
            for (size_t t = 0; t < seq; t++) {
                tokens[t] = 0;
                targets[t] = -1;
            }
            continue;
        }
        uint64_t window = batch_window(source, counters[i]);
        uint32_t largest;
        TRY(tokens_window(source->tokens, source->seq, window, scratch, &largest, err));
        if (largest >= source->vocab_size)
            return tokens_check_window(source->tokens, source->seq, window, source->vocab_size, err);
        for (size_t t = 0; t < seq; t++) {
            tokens[t] = (int32_t)scratch[t];
            targets[t] = (int32_t)scratch[t + 1];
        }
    }
    return STATUS_OK;
}
