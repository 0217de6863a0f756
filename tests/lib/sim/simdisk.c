#include "tests/lib/sim/simdisk.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/lib/store/save_image.h"

static void clear(struct simdisk *d, struct simdisk_file *file)
{
    mem_free(file->data);
    simcheck_mark_free(d->check, file->mark);
    *file = (struct simdisk_file){0};
}

/* Whatever the process does in the meantime. */
static void save_over(void *ctx, uint64_t number)
{
    struct simdisk *d = ctx;
    if (number != d->save.number || d->save.over) return;
    d->save.over = true;
    if (!save_image_holds(d->save.file.data, d->save.file.size, d->save.body, d->save.parts))
        simcheck_fail(d->check, "worker-%d: its state changed while it was saved", d->client);
    if (d->full) return;
    clear(d, &d->files[SIMDISK_SAVES - 1]);
    memmove(d->files + 1, d->files, (SIMDISK_SAVES - 1) * sizeof(d->files[0]));
    d->files[0] = d->save.file;
    d->save.file = (struct simdisk_file){0};
}

void simdisk_save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n)
{
    struct simdisk *d = ctx;
    if (d->save.number) simcheck_fail(d->check, "worker-%d: two saves at once", d->client);
    d->save.number = ++d->save.count;
    d->save.over = false;
    d->save.body = body;
    d->save.parts = n;
    d->save.file.data = save_image(state, body, n, &d->save.file.size);
    d->save.file.mark = simcheck_worker_saved(d->check, d->client);
    if (d->save_us)
        simnet_at(d->net, simnet_now(d->net) + d->save_us, save_over, d, d->save.number);
    else
        save_over(d, d->save.number);
}

enum status simdisk_save_poll(void *ctx, bool wait, struct err *err)
{
    struct simdisk *d = ctx;
    if (!d->save.number) return STATUS_OK;
    if (wait) save_over(d, d->save.number);
    if (!d->save.over) return STATUS_AGAIN;
    d->save.number = 0;
    if (!d->save.file.data) return STATUS_OK;
    clear(d, &d->save.file);
    return err_set(err, STATUS_IO, "worker-%d: no space left on the virtual disk", d->client);
}

enum status simdisk_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    struct simdisk *d = ctx;
    if (age < 0 || age >= SIMDISK_SAVES || !d->files[age].data)
        return err_set(err, STATUS_NOTFOUND, "worker-%d has no saved state", d->client);
    *data_p = d->files[age].data;
    *size_p = d->files[age].size;
    simcheck_worker_loaded(d->check, d->client, d->files[age].mark);
    return STATUS_OK;
}

void simdisk_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx, (void)data, (void)size;
}

bool simdisk_saving(const struct simdisk *d)
{
    return d->save.number && !d->save.over;
}

void simdisk_killed(struct simdisk *d)
{
    d->save.number = 0;
    clear(d, &d->save.file);
}

void simdisk_wipe(struct simdisk *d)
{
    for (int i = 0; i < SIMDISK_SAVES; i++) clear(d, &d->files[i]);
}
