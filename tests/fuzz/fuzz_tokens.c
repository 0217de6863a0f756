/* Token shards: every window of an accepted shard can be read. */
#include <stdint.h>
#include <string.h>

#include "common/tensor/tokens.h"
#include "tests/fuzz/fuzz_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct token_shard shard;
    struct err err = {0};
    enum status status = token_shard_parse(&shard, data, size, "shard", &err);
    if (status != STATUS_OK) {
        FUZZ_CHECK(status == STATUS_CORRUPT && err.msg[0] && !strchr(err.msg, '\n'));
        return 0;
    }
    FUZZ_CHECK(shard.width == 2 || shard.width == 4);
    FUZZ_CHECK(TOKENS_HEADER_BYTES + shard.n_tokens * shard.width == size);
    const struct tokens tokens = {.shards = &shard, .n_shards = 1, .n_tokens = shard.n_tokens};
    static const uint32_t contexts[] = {1, 2, 7, 64, 255};
    for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++) {
        uint32_t t = contexts[k], window[256];
        uint64_t n = tokens_samples(&tokens, t);
        FUZZ_CHECK(n * t + 1 <= shard.n_tokens || n == 0);
        for (uint64_t i = 0; i < n; i++) {
            uint32_t largest, seen = 0;
            FUZZ_CHECK(tokens_window(&tokens, t, i, window, &largest, &err) == STATUS_OK);
            for (uint32_t j = 0; j <= t; j++) seen = window[j] > seen ? window[j] : seen;
            FUZZ_CHECK(seen == largest && (shard.width == 4 || largest < 65536));
        }
    }
    FUZZ_CHECK(tokens_samples(&tokens, 0) == 0);
    return 0;
}
