/* safetensors files: every name of an accepted file can be looked up, and every tensor lies inside the file. */
#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/tensor/safetensors.h"
#include "tests/fuzz/fuzz_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float values[1 << 16];
    struct safetensors st;
    struct err err = {0};
    size_t live = mem_live_bytes();
    if (safetensors_parse(&st, data, size, "file", &err) != STATUS_OK) {
        FUZZ_CHECK(err.msg[0]);
        FUZZ_CHECK(mem_live_bytes() == live); /* all memory is freed */
        return 0;
    }
    const uint8_t *at = NULL;
    for (uint32_t i = 0; i < st.n; i++) {
        const struct safetensors_entry *e = &st.entries[i];
        FUZZ_CHECK(e->data >= data && e->bytes <= size && e->data + e->bytes <= data + size);
        FUZZ_CHECK(!at || e->data == at); /* end to end */
        at = e->data + e->bytes;
        FUZZ_CHECK(safetensors_find(&st, e->name) == e);
        FUZZ_CHECK(e->ndim <= SAFETENSORS_DIMS_MAX);
        if (e->count <= sizeof values / sizeof *values) (void)!safetensors_read_f32(e, values, &err);
    }
    FUZZ_CHECK(!st.n || at == data + size);
    safetensors_close(&st);
    FUZZ_CHECK(mem_live_bytes() == live);
    return 0;
}
