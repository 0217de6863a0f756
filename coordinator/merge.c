#include "coordinator/merge.h"

#include "compress/codec.h"

void merge_start(struct merge *merge, float *acc, size_t n, uint64_t tokens)
{
    *merge = (struct merge){.acc = acc, .n = n, .tokens = tokens};
}

float merge_weight(uint64_t tokens, uint64_t total)
{
    return tokens == total ? 1.0f : (float)((double)tokens / (double)total);
}

enum status merge_add(struct merge *merge, struct codec *codec, uint64_t tokens, const uint8_t *payload, size_t size)
{
    float weight = merge_weight(tokens, merge->tokens);
    if (merge->added == 0 && weight == 1.0f) {
        TRY(codec_decode(codec, payload, size, merge->acc));
    } else {
        /* -0 + x is x for every x, +0 + x loses the sign of -0. */
        if (merge->added == 0)
            for (size_t i = 0; i < merge->n; i++) merge->acc[i] = -0.0f;
        TRY(codec_decode_axpy(codec, weight, payload, size, merge->acc));
    }
    merge->added++;
    return STATUS_OK;
}
