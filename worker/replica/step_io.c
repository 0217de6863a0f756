#include "worker/replica/step_io.h"

#include <assert.h>

/* Number of slots for this device. */
static int slots_of(const struct device *dev)
{
    return dev->host_memory ? 1 : STEP_SLOTS_MAX;
}

static size_t slot_bytes(size_t micro_tokens, uint32_t micro_steps)
{
    return micro_tokens * micro_steps * (2 * sizeof(int32_t) + sizeof(float)) + sizeof(float);
}

size_t step_io_bytes(const struct device *dev, size_t micro_tokens, uint32_t micro_steps)
{
    return (size_t)slots_of(dev) * slot_bytes(micro_tokens, micro_steps);
}

enum status step_io_open(struct step_io *io, struct device *dev, size_t micro_tokens, uint32_t micro_steps)
{
    size_t n = micro_tokens * micro_steps;
    io->dev = dev;
    io->micro_tokens = micro_tokens;
    io->n_slots = slots_of(dev);
    assert(n > 0 && io->n_slots <= STEP_SLOTS_MAX);
    for (int i = 0; i < io->n_slots; i++) {
        struct step_slot *slot = &io->slots[i];
        slot->tokens = device_host_alloc(dev, slot_bytes(micro_tokens, micro_steps));
        if (!slot->tokens) return STATUS_NOMEM;
        slot->targets = slot->tokens + n;
        slot->loss = (float *)(void *)(slot->targets + n);
        slot->norm = slot->loss + n;
    }
    return STATUS_OK;
}

void step_io_close(struct step_io *io)
{
    for (int i = 0; i < io->n_slots; i++) device_host_release(io->dev, io->slots[i].tokens);
    *io = (struct step_io){0};
}

void step_io_row_losses(const struct step_io *io, int slot, uint32_t micro, size_t rows, double *out)
{
    assert(slot >= 0 && slot < io->n_slots && rows > 0 && io->micro_tokens % rows == 0);
    size_t seq = io->micro_tokens / rows;
    const float *loss = io->slots[slot].loss + micro * io->micro_tokens;
    for (size_t i = 0; i < rows; i++, loss += seq) {
        out[i] = 0;
        for (size_t t = 0; t < seq; t++) out[i] += loss[t];
    }
}
