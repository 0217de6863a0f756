/* Tables of journal records and file heads: what a table reads, it writes again, byte for byte. Byte 0 selects the
 * table: 1 to 14 are records, their second tables are 32 higher, 64 on are the parts of a checkpoint's head, 96 on
 * those of a worker's state. */
#include <string.h>

#include "coordinator/ledger/checkpoint.h"
#include "tests/fuzz/fuzz_check.h"
#include "worker/outer/worker_state.h"

static const struct field *part_of(const struct field_part *parts, unsigned i)
{
    while (i-- && parts->name) parts++;
    return parts->fields;
}

static const struct field *table_of(unsigned n)
{
    if (n >= 96) return part_of(saved_state_parts, n - 96);
    if (n >= 64) return part_of(checkpoint_parts, n - 64);
    if (!record_name(n % 32)) return NULL;
    return n < 32 ? record_fields(n) : record_more(n % 32);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(64) uint8_t object[1 << 18]; /* any of the structs */
    static uint8_t again[1 << 16];
    const struct field *table = size ? table_of(data[0]) : NULL;
    if (!table || size > sizeof again) return 0;
    memset(object, 0, sizeof object);
    struct reader r = reader_of(data + 1, size - 1);
    fields_read(table, object, &r);
    if (r.bad) return 0;
    struct writer w = writer_of(again, r.pos);
    FUZZ_CHECK(fields_size(table, object) == r.pos);
    fields_put(table, object, &w);
    FUZZ_CHECK(!w.bad && !memcmp(again, data + 1, r.pos));
    return 0;
}
