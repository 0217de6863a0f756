#include "tests/lib/sim/sim_store.h"

#include "common/base/mem.h"
#include "tests/lib/store/store_mem.h"

struct sim_store {
    struct store base; /* first: the ops get a pointer to it */
    struct store *inner;
    struct sim_check *check;
    sim_store_alive_fn alive;
    void *ctx;
};

static struct sim_store *self(struct store *s)
{
    return (struct sim_store *)s;
}

static enum status dead(struct err *err)
{
    return err_set(err, STATUS_IO, "the process was killed");
}

static enum status sim_segment_begin(struct store *s, uint64_t segment, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->segment_begin(self(s)->inner, segment, err);
}

static enum status sim_segment_continue(struct store *s, uint64_t segment, uint64_t size, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->segment_continue(self(s)->inner, segment, size, err);
}

static enum status sim_append(struct store *s, const struct store_part *parts, size_t n, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    TRY(self(s)->inner->ops->append(self(s)->inner, parts, n, err));
    sim_check_store_appended(self(s)->check, parts, n);
    return STATUS_OK;
}

static enum status sim_sync(struct store *s, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    TRY(self(s)->inner->ops->sync(self(s)->inner, err));
    sim_check_store_synced(self(s)->check);
    return STATUS_OK;
}

static enum status sim_segment_read(struct store *s, uint64_t segment, uint64_t offset, void *dst, size_t size,
                                    struct err *err)
{
    return self(s)->inner->ops->segment_read(self(s)->inner, segment, offset, dst, size, err);
}

static enum status sim_segment_size(struct store *s, uint64_t segment, uint64_t *size_p, struct err *err)
{
    return self(s)->inner->ops->segment_size(self(s)->inner, segment, size_p, err);
}

static enum status sim_segment_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    return self(s)->inner->ops->segment_list(self(s)->inner, out, cap, n_p, err);
}

static enum status sim_segment_remove(struct store *s, uint64_t segment, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->segment_remove(self(s)->inner, segment, err);
}

static enum status sim_segment_put_aside(struct store *s, uint64_t segment, uint64_t keep, char *name, size_t cap,
                                         struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->segment_put_aside(self(s)->inner, segment, keep, name, cap, err);
}

static enum status sim_snapshot_write(struct store *s, const struct store_checkpoint *snapshot, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->checkpoint_write(self(s)->inner, snapshot, err);
}

static enum status sim_snapshot_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    return self(s)->inner->ops->checkpoint_list(self(s)->inner, out, cap, n_p, err);
}

static enum status sim_snapshot_state_size(struct store *s, uint64_t round, uint64_t *size_p, struct err *err)
{
    return self(s)->inner->ops->checkpoint_state_size(self(s)->inner, round, size_p, err);
}

static enum status sim_snapshot_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                           struct err *err)
{
    return self(s)->inner->ops->checkpoint_state_read(self(s)->inner, round, offset, dst, size, err);
}

static enum status sim_snapshot_theta_read(struct store *s, uint64_t round, const struct layout *layout, uint64_t first,
                                           float *dst, uint64_t count, struct err *err)
{
    return self(s)->inner->ops->checkpoint_theta_read(self(s)->inner, round, layout, first, dst, count, err);
}

static enum status sim_snapshot_remove(struct store *s, uint64_t round, struct err *err)
{
    if (!self(s)->alive(self(s)->ctx)) return dead(err);
    return self(s)->inner->ops->checkpoint_remove(self(s)->inner, round, err);
}

static enum status sim_spool_write(struct store *s, uint64_t offset, const void *data, size_t size, struct err *err)
{
    return self(s)->inner->ops->spool_write(self(s)->inner, offset, data, size, err);
}

static enum status sim_spool_read(struct store *s, uint64_t offset, void *dst, size_t size, struct err *err)
{
    return self(s)->inner->ops->spool_read(self(s)->inner, offset, dst, size, err);
}

static void sim_spool_forget(struct store *s, uint64_t offset, uint64_t size)
{
    self(s)->inner->ops->spool_forget(self(s)->inner, offset, size);
}

static void sim_close(struct store *s)
{
    (void)s;
}

static const struct store_ops sim_ops = {
    .segment_begin = sim_segment_begin,
    .segment_continue = sim_segment_continue,
    .append = sim_append,
    .sync = sim_sync,
    .segment_read = sim_segment_read,
    .segment_size = sim_segment_size,
    .segment_list = sim_segment_list,
    .segment_remove = sim_segment_remove,
    .segment_put_aside = sim_segment_put_aside,
    .checkpoint_write = sim_snapshot_write,
    .checkpoint_list = sim_snapshot_list,
    .checkpoint_state_size = sim_snapshot_state_size,
    .checkpoint_state_read = sim_snapshot_state_read,
    .checkpoint_theta_read = sim_snapshot_theta_read,
    .checkpoint_remove = sim_snapshot_remove,
    .spool_write = sim_spool_write,
    .spool_read = sim_spool_read,
    .spool_forget = sim_spool_forget,
    .close = sim_close,
};

enum status sim_store_create(struct sim_store **s_p, struct sim_check *check, sim_store_alive_fn alive, void *ctx)
{
    struct sim_store *s = mem_alloc(1, sizeof(*s));
    if (!s) return STATUS_NOMEM;
    *s = (struct sim_store){.base = {&sim_ops}, .check = check, .alive = alive, .ctx = ctx};
    enum status status = store_mem_create(&s->inner);
    if (status != STATUS_OK) mem_free(s);
    if (status == STATUS_OK) *s_p = s;
    return status;
}

void sim_store_destroy(struct sim_store *s)
{
    if (!s) return;
    store_mem_destroy(s->inner);
    mem_free(s);
}

struct store *sim_store_store(struct sim_store *s)
{
    return &s->base;
}

void sim_store_set_room(struct sim_store *s, uint64_t bytes)
{
    store_mem_set_room(s->inner, bytes);
}

void sim_store_crash(struct sim_store *s, bool power, uint64_t draw)
{
    store_mem_crash(s->inner, power, draw);
}
