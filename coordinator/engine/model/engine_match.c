/* Whether the model and the data of a worker are those of the run. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/engine/model/engine_model.h"
#include "coordinator/engine/state/engine_effects.h"

static void refuse_layout(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    struct layout other;
    struct reader r = reader_of(m->layout, m->layout_size);
    char what[LAYOUT_DIFFERENCE_MAX] = "cannot read its layout";
    layout_init(&other);
    if (layout_decode(&other, &r) == STATUS_OK) layout_difference(&other, &e->ledger.layout, what);
    layout_finish(&other);
    engine_refuse(e, peer, m->name, REFUSE_LAYOUT, "the model of '%s' differs from the run's: %s", m->name, what);
}

/* Compares the tensors that are not exchanged. Refuses the worker and returns false if they differ. */
static bool frozen_matches(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    const struct record_model *run = &e->ledger.model;
    struct frozen other = {0};
    char text[FROZEN_DIFFERENCE_MAX];
    if (!run->frozen || m->frozen_any) return true;
    if (m->frozen_size == run->frozen_size && (!m->frozen_size || !memcmp(m->frozen, run->frozen, m->frozen_size)))
        return true;
    const char *what = "its list of frozen tensors is malformed";
    if (frozen_decode(&other, m->frozen, m->frozen_size) == STATUS_OK)
        what = frozen_difference(&other, &e->ledger.frozen, text);
    frozen_finish(&other);
    assert(what); /* equal lists have equal bytes */
    engine_refuse(e, peer, m->name, REFUSE_LAYOUT,
                  "the base model of '%s' differs from the run's: %s: use the same base model as the other workers; "
                  "frozen=\"any\" allows another quantization of it",
                  m->name, what);
    return false;
}

/* A worker without validation data does not evaluate. */
static void refuse_data(struct engine *e, uint64_t peer, const struct msg_join *m, bool train)
{
    const struct record_model *model = &e->ledger.model;
    uint64_t given = train ? m->train_samples : m->val_samples, run = train ? model->train_samples : model->val_samples;
    char what[64] = "in its content";
    if (given != run)
        snprintf(what, sizeof what, "%llu samples instead of %llu", (unsigned long long)given, (unsigned long long)run);
    else if (m->sample_tokens != model->sample_tokens)
        snprintf(what, sizeof what, "samples of %u tokens instead of %u", m->sample_tokens, model->sample_tokens);
    engine_refuse(e, peer, m->name, REFUSE_DATASET,
                  "the %s data of '%s' differs from the run's (%s): use the same data as the other workers",
                  train ? "training" : "validation", m->name, what);
}

bool engine_match(struct engine *e, uint64_t peer, const struct msg_join *m)
{
    const struct record_model *model = &e->ledger.model;
    bool train = m->train_hash == model->train_hash && m->train_samples == model->train_samples;
    bool val = !m->val_samples || !model->val_samples ||
               (m->val_hash == model->val_hash && m->val_samples == model->val_samples);
    if (m->layout_hash != layout_hash(&e->ledger.layout))
        refuse_layout(e, peer, m);
    else if (!train || !val || m->sample_tokens != model->sample_tokens)
        refuse_data(e, peer, m, !train || val);
    else
        return frozen_matches(e, peer, m);
    return false;
}

enum status engine_define_val(struct engine *e, const struct msg_join *m, struct err *err)
{
    struct record_val val = {.hash = m->val_hash, .samples = m->val_samples};
    if (!m->val_samples || e->ledger.model.val_samples || e->ledger.done) return STATUS_OK;
    log_info("validation data: %llu samples, those of %s", (unsigned long long)m->val_samples, m->name);
    return ledger_write(&e->ledger, RECORD_VAL, &val, NULL, err);
}
