#include "tests/lib/sim/sim_disk.h"

#include <string.h>

#include "common/base/mem.h"
#include "tests/lib/store/save_image.h"

static void clear(struct sim_disk *d, struct sim_disk_file *file)
{
    mem_free(file->data);
    sim_check_mark_free(d->check, file->mark);
    *file = (struct sim_disk_file){0};
}

/* Completes the save, whatever the process does in the meantime. */
static void save_over(void *ctx, uint64_t number)
{
    struct sim_disk *d = ctx;
    if (number != d->save.number || d->save.over) return;
    d->save.over = true;
    if (!save_image_holds(d->save.file.data, d->save.file.size, d->save.body, d->save.parts))
        sim_check_fail(d->check, "worker-%d: its state changed while it was saved", d->client);
    if (d->full) return;
    clear(d, &d->files[SIM_DISK_SAVES - 1]);
    memmove(d->files + 1, d->files, (SIM_DISK_SAVES - 1) * sizeof(d->files[0]));
    d->files[0] = d->save.file;
    d->save.file = (struct sim_disk_file){0};
}

void sim_disk_save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n)
{
    struct sim_disk *d = ctx;
    if (d->save.number) sim_check_fail(d->check, "worker-%d: two saves at once", d->client);
    d->save.number = ++d->save.count;
    d->save.over = false;
    d->save.body = body;
    d->save.parts = n;
    d->save.file.data = save_image(state, body, n, &d->save.file.size);
    d->save.file.mark = sim_check_worker_saved(d->check, d->client);
    if (d->save_us)
        sim_net_at(d->net, sim_net_now(d->net) + d->save_us, save_over, d, d->save.number);
    else
        save_over(d, d->save.number);
}

void sim_disk_mark_again(struct sim_disk *d)
{
    struct sim_disk_file *file = d->save.file.data ? &d->save.file : &d->files[0];
    if (!file->data) return;
    sim_check_mark_free(d->check, file->mark);
    file->mark = sim_check_worker_saved(d->check, d->client);
}

enum status sim_disk_save_poll(void *ctx, bool wait, struct err *err)
{
    struct sim_disk *d = ctx;
    if (!d->save.number) return STATUS_OK;
    if (wait) save_over(d, d->save.number);
    if (!d->save.over) return STATUS_AGAIN;
    d->save.number = 0;
    if (!d->save.file.data) return STATUS_OK;
    clear(d, &d->save.file);
    return err_set(err, STATUS_IO, "worker-%d: no space left on the virtual disk", d->client);
}

enum status sim_disk_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    struct sim_disk *d = ctx;
    if (age < 0 || age >= SIM_DISK_SAVES || !d->files[age].data)
        return err_set(err, STATUS_NOTFOUND, "worker-%d has no saved state", d->client);
    *data_p = d->files[age].data;
    *size_p = d->files[age].size;
    sim_check_worker_loaded(d->check, d->client, d->files[age].mark);
    return STATUS_OK;
}

void sim_disk_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx, (void)data, (void)size;
}

bool sim_disk_saving(const struct sim_disk *d)
{
    return d->save.number && !d->save.over;
}

void sim_disk_killed(struct sim_disk *d)
{
    d->save.number = 0;
    clear(d, &d->save.file);
}

void sim_disk_wipe(struct sim_disk *d)
{
    for (int i = 0; i < SIM_DISK_SAVES; i++) clear(d, &d->files[i]);
}
