#include "coordinator/ledger/update_log.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

void update_log_finish(struct update_log *log)
{
    for (uint32_t f = 0; f < LAYOUT_FRAGMENTS_MAX; f++) mem_free(log->f[f].entries);
    memset(log, 0, sizeof *log);
}

static enum status push(struct update_log *log, uint32_t fragment, const struct update_entry *entry)
{
    if (log->f[fragment].n == log->f[fragment].cap) {
        size_t cap = log->f[fragment].cap ? 2 * log->f[fragment].cap : 64;
        struct update_entry *grown =
            mem_resize(log->f[fragment].entries, log->f[fragment].n * sizeof *grown, cap * sizeof *grown);
        if (!grown) return STATUS_NOMEM;
        log->f[fragment].entries = grown;
        log->f[fragment].cap = cap;
    }
    assert(log->f[fragment].n < log->f[fragment].cap);
    log->f[fragment].entries[log->f[fragment].n++] = *entry;
    return STATUS_OK;
}

enum status update_log_start(struct update_log *log, uint32_t fragment, uint64_t version, uint64_t hash)
{
    assert(fragment < LAYOUT_FRAGMENTS_MAX);
    log->f[fragment].n = 0;
    log->f[fragment].base = version;
    return push(log, fragment, &(struct update_entry){.hash = hash});
}

enum status update_log_add(struct update_log *log, uint32_t fragment, uint64_t version,
                           const struct update_entry *entry)
{
    if (version != log->f[fragment].base + log->f[fragment].n || !log->f[fragment].n) return STATUS_STATE;
    return push(log, fragment, entry);
}

const struct update_entry *update_log_find(const struct update_log *log, uint32_t fragment, uint64_t version)
{
    uint64_t base = log->f[fragment].base;
    if (version < base || version - base >= log->f[fragment].n) return NULL;
    return &log->f[fragment].entries[version - base];
}

uint64_t update_log_bytes(const struct update_log *log, uint32_t fragment, uint64_t held, uint64_t to)
{
    uint64_t bytes = 0;
    if (held >= to) return 0;
    if (!update_log_find(log, fragment, held) || !update_log_find(log, fragment, to))
        return UINT64_MAX / 2 / LAYOUT_FRAGMENTS_MAX;
    for (uint64_t v = held + 1; v <= to; v++) bytes += update_log_find(log, fragment, v)->size;
    return bytes;
}

void update_log_trim(struct update_log *log, uint32_t fragment, uint64_t version)
{
    uint64_t base = log->f[fragment].base;
    if (version <= base || version - base >= log->f[fragment].n) return;
    size_t drop = version - base;
    assert(drop > 0 && drop < log->f[fragment].n); /* at least one entry stays */
    struct update_entry *entries = log->f[fragment].entries;
    memmove(entries, entries + drop, (log->f[fragment].n - drop) * sizeof *entries);
    log->f[fragment].n -= drop;
    log->f[fragment].base = version;
    entries[0].size = 0;
    assert(update_log_find(log, fragment, version) == entries);
}
