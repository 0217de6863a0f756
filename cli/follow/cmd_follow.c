/* atoll follow: keeps the newest model of a run as a Hugging Face folder. A coordinator is asked over its connection;
 * the folder of a stopped or finished run gives its newest checkpoint. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/follow/follow_link.h"
#include "cli/follow/follow_model.h"
#include "cli/follow/follow_out.h"
#include "cli/verbs.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/config/options.h"
#include "common/os/interrupt.h"
#include "common/tensor/hf_folder.h"
#include "common/tensor/hf_source.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/checkpoint_folder.h"
#include "coordinator/run_folder.h"
#include "wire/join_target.h"

enum { POLL_US = 1000000, WAIT_TEXT = 600, LAST_SAVE_POLLS = 60 };

struct follow {
    struct join_target target;
    uint64_t every; /* rounds between two models */
    struct follow_out out;
    struct follow_link link;
    struct follow_model model;
    char run_id[2 * WIRE_UUID + 1]; /* "": not known yet */
    bool answered;                  /* a coordinator has answered */
    char files[FILEIO_PATH_MAX];    /* folder with the files beside the model; "": not here yet */
    char waiting[WAIT_TEXT];        /* the last line about a wait */
    uint64_t told;                  /* link.received at the last line about a model */

    /* To see that the run was taken back (atoll rollback, atoll exclude): OUT's round then has other parameters. */
    bool hashed, taken_back;               /* hashes[] are those of OUT; the run's updates fit to none of ours */
    uint64_t hashes[LAYOUT_FRAGMENTS_MAX]; /* of the fragments */
    ino_t inode;                           /* of the checkpoint's parameters that were compared with OUT; 0: none */
};

/* Says once why there is no newer model. */
static void say_waiting(struct follow *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void say_waiting(struct follow *f, const char *fmt, ...)
{
    char text[WAIT_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!strcmp(text, f->waiting)) return;
    snprintf(f->waiting, sizeof f->waiting, "%s", text);
    log_info("%s", text);
}

/* The run is known from its first answer on. */
static enum status check_run(struct follow *f, const char *run_id, struct err *err)
{
    if (f->run_id[0] && strcmp(f->run_id, run_id) != 0)
        return err_set(err, STATUS_MISMATCH, "another run now answers there: give %s another name, or the run's line",
                       f->out.path);
    snprintf(f->run_id, sizeof f->run_id, "%s", run_id);
    return follow_out_check(&f->out, run_id, err);
}

static enum status write_model(struct follow *f, const struct follow_label *label, uint64_t rounds,
                               const struct follow_content *content, struct err *err)
{
    char of[32] = "", received[64] = "";
    TRY(follow_out_write(&f->out, label, content, err));
    if (rounds) snprintf(of, sizeof of, " of %" PRIu64, rounds);
    if (f->link.received > f->told)
        snprintf(received, sizeof received, ", %s received", units_bytes((double)(f->link.received - f->told)).text);
    f->told = f->link.received;
    f->waiting[0] = '\0';
    f->taken_back = false;
    text_print(stdout, "%s: round %" PRIu64 "%s of %s, theta_hash %016" PRIx64 "%s\n", f->out.path, label->round, of,
               label->run, label->theta_hash, received);
    fflush(stdout);
    return STATUS_OK;
}

/* A first model, the last one, or `every` rounds after the one in OUT. */
static bool is_due(const struct follow *f, uint64_t round, bool last)
{
    if (!f->out.written) return true;
    if (round < f->out.label.round) return true; /* the run went back */
    return round > f->out.label.round && (last || round - f->out.label.round >= f->every);
}

/* --- from a coordinator ------------------------------------------------------------------------------------------- */

static enum status put_file(void *ctx, uint64_t offset, const uint8_t *data, size_t size, uint64_t total,
                            struct err *err)
{
    (void)offset, (void)total;
    return file_out_put(ctx, data, size, err);
}

static enum status fetch_file(struct follow *f, uint32_t i, struct err *err)
{
    char path[FILEIO_PATH_MAX + WIRE_NAME_MAX + 1];
    struct file_out out;
    snprintf(path, sizeof path, "%s/%s", f->files, f->model.files[i].name);
    TRY(file_out_open(&out, path, err));
    enum status status = STATUS_OK;
    if (f->model.files[i].size) status = follow_link_fetch(&f->link, FETCH_FILE, i, 0, put_file, &out, err);
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    return status;
}

/* The files beside the model stay the same during a run: read once. */
static enum status fetch_files(struct follow *f, struct err *err)
{
    char name[sizeof f->out.path + 8];
    if (f->files[0]) return STATUS_OK;
    snprintf(name, sizeof name, "%s.files", f->out.path);
    TRY(temporary_name(name, f->files, sizeof f->files, err));
    enum status status = dir_make(f->files, err);
    for (uint32_t i = 0; status == STATUS_OK && i < f->model.n_files; i++) status = fetch_file(f, i, err);
    if (status == STATUS_OK) return status;
    if (dir_remove_flat(f->files, NULL) == STATUS_OK) f->files[0] = '\0';
    return status;
}

static void note_hashes(struct follow *f)
{
    for (uint32_t i = 0; i < f->model.layout.n_fragments; i++) f->hashes[i] = f->model.held[i].hash;
    f->hashed = true;
}

/* OUT's round has other parameters now. */
static bool is_replaced(const struct follow *f, const struct msg_model_reply *r, uint64_t round)
{
    const struct wire_version *now = f->model.updates ? r->current : r->snapshot;
    if (!f->out.written || round != f->out.label.round) return false;
    for (uint32_t i = 0; f->hashed && i < f->model.layout.n_fragments && i < r->n_fragments; i++)
        if (now[i].hash != f->hashes[i]) return true;
    return !f->hashed;
}

/* Takes the parameters that OUT holds from an earlier call: then only the updates since are read. */
static void resume(struct follow *f)
{
    struct follow_model *m = &f->model;
    const struct follow_label *label = &f->out.label;
    if (!f->out.written || label->n_fragments != m->layout.n_fragments) return;
    if (hf_folder_load_part(f->out.path, &m->layout, NULL, m->theta, NULL) != STATUS_OK) return;
    if (follow_model_resume(m, label->versions, label->round, label->theta_hash)) note_hashes(f);
}

static enum status describe(struct follow *f, struct err *err)
{
    bool first = !f->model.described;
    TRY(follow_model_describe(&f->model, &f->link, err));
    if (first) resume(f);
    return fetch_files(f, err);
}

/* Reads what is new, and writes it if it is due. *done_p: OUT holds the last model of the run. */
static enum status take_model(struct follow *f, const struct msg_model_reply *r, bool *done_p, struct err *err)
{
    static struct follow_label label; /* large */
    struct follow_model *m = &f->model;
    TRY(describe(f, err));
    uint64_t round = m->updates ? r->round : r->snapshot_round;
    bool replaced = is_replaced(f, r, round), due = replaced || f->taken_back || is_due(f, round, r->done);
    if (replaced) m->loaded = false;
    if (due || (m->loaded && round > m->round && !follow_model_is_costly(m, f->every)))
        TRY(follow_model_read(m, &f->link, r, err));
    if (due) {
        label = (struct follow_label){.round = m->round, .n_fragments = m->layout.n_fragments};
        snprintf(label.run, sizeof label.run, "%s", r->run);
        snprintf(label.run_id, sizeof label.run_id, "%s", f->run_id);
        for (uint32_t i = 0; i < label.n_fragments; i++) label.versions[i] = m->held[i].version;
        label.theta_hash = layout_theta_hash(&m->layout, m->theta);
        const struct follow_content content = {&m->layout, m->theta, m->config_json, f->files};
        TRY(write_model(f, &label, r->rounds, &content, err));
        note_hashes(f);
    }
    *done_p = r->done;
    return STATUS_OK;
}

/* One look at the coordinator. CLOSED, AGAIN: it is away. */
static enum status look(struct follow *f, const struct transport_address *address, bool *done_p, struct err *err)
{
    static struct msg_model_reply r; /* large */
    char run_id[2 * WIRE_UUID + 1];
    if (!f->link.t) {
        uint64_t received = f->link.received;
        TRY(follow_link_open(&f->link, address, err));
        f->link.received = received;
    }
    TRY(follow_link_ask(&f->link, &r, err));
    f->answered = true;
    TRY(check_run(f, number_hex_text(r.run_id, WIRE_UUID, run_id), err));
    if (!r.bytes) {
        say_waiting(f, "the run has no model yet%s%s", r.waiting_for[0] ? ": it waits for " : "", r.waiting_for);
        return STATUS_OK;
    }
    return take_model(f, &r, done_p, err);
}

/* --- from a folder ------------------------------------------------------------------------------------------------ */

/* theta_hash of a checkpoint: its model.safetensors holds theta in the order of the hash. */
static enum status hash_of_checkpoint(const char *folder, uint64_t *hash_p, struct err *err)
{
    struct hf_source source;
    unsigned long long begin = 0, end = 0;
    enum status status = hf_source_open(&source, folder, err);
    if (status == STATUS_OK) {
        const struct safetensors *st = &source.files[0].st;
        const char *place = json_string_value(json_object_get(json_object_get(st->json, "__metadata__"), "theta"));
        for (uint32_t i = 0; i < st->n; i++) end += st->entries[i].bytes;
        if (place && sscanf(place, "%llu %llu", &begin, &end) != 2) begin = end = 0;
        bool good = st->n && begin < end && begin % sizeof(float) == 0;
        if (good)
            *hash_p = hash_floats(NULL, (const float *)(const void *)(st->entries[0].data + begin),
                                  (end - begin) / sizeof(float));
        else
            status = err_set(err, STATUS_CORRUPT, "%.300s has no parameters", folder);
    }
    hf_source_close(&source);
    return status;
}

/* The name in the run's configuration. */
static void name_of_run(const char *run, char name[WIRE_NAME_MAX])
{
    static struct config config; /* large */
    static struct config_sources sources;
    char path[FILEIO_PATH_MAX];
    config_defaults(&config, &sources);
    name[0] = '\0';
    if (run_folder_path(path, sizeof path, run, "config.yaml", NULL) != STATUS_OK ||
        config_load(&config, &sources, path, NULL) != STATUS_OK)
        return;
    snprintf(name, WIRE_NAME_MAX, "%.*s", WIRE_NAME_MAX - 1, config.run.name);
    text_make_clean(name);
}

/* Reads the hash of a checkpoint of OUT's round once. */
static enum status compare_checkpoint(struct follow *f, const char *folder, bool *replaced_p, struct err *err)
{
    char path[FILEIO_PATH_MAX + sizeof HF_MODEL_FILE];
    uint64_t hash;
    struct stat st;
    snprintf(path, sizeof path, "%s/" HF_MODEL_FILE, folder);
    *replaced_p = false;
    if (stat(path, &st) || st.st_ino == f->inode) return STATUS_OK;
    TRY(hash_of_checkpoint(folder, &hash, err));
    f->inode = st.st_ino;
    *replaced_p = hash != f->out.label.theta_hash;
    return STATUS_OK;
}

/* NOTFOUND: there is no checkpoint, or it was removed a moment ago. */
static enum status take_checkpoint(struct follow *f, bool done, struct err *err)
{
    static struct follow_label label; /* large */
    struct checkpoint_info info;
    char path[FILEIO_PATH_MAX], folder[FILEIO_PATH_MAX], name[256];
    uint64_t round;
    const char *run = f->target.run_dir;
    TRY(run_folder_path(path, sizeof path, run, "run_id", err));
    TRY(run_folder_read_line(path, label.run_id, sizeof label.run_id, err));
    TRY(check_run(f, label.run_id, err));
    TRY(hf_folder_latest(run, name, sizeof name, err));
    const char *number = strrchr(name, '_');
    if (!number || !number[1]) return err_set(err, STATUS_NOTFOUND, "%s has no checkpoint", run);
    round = strtoull(number + 1, NULL, 10);
    if (snprintf(folder, sizeof folder, "%s/checkpoints/%s", run, name) >= (int)sizeof folder)
        return err_set(err, STATUS_LIMIT, "the path of %.200s is too long", run);
    bool due = is_due(f, round, done);
    if (!due && round == f->out.label.round) TRY(compare_checkpoint(f, folder, &due, err));
    if (!due) return STATUS_OK;
    TRY(checkpoint_folder_look(folder, round, &info, err));
    label.round = round;
    label.n_fragments = info.n_fragments;
    memcpy(label.versions, info.versions, sizeof label.versions);
    TRY(hash_of_checkpoint(folder, &label.theta_hash, err));
    name_of_run(run, label.run);
    const struct follow_content content = {.config_json = "", .files = folder};
    return write_model(f, &label, 0, &content, err);
}

/* The coordinator is not here. *done_p: the run is over, and OUT holds its last model. */
static enum status look_in_folder(struct follow *f, bool *done_p, struct err *err)
{
    const char *run = f->target.run_dir;
    bool done = run_folder_has(run, "summary.json");
    if (!file_exists(run)) return err_set(err, STATUS_NOTFOUND, "run folder %s does not exist", run);
    enum status status = take_checkpoint(f, done, err);
    if (status == STATUS_NOTFOUND && !done) {
        say_waiting(f, "waiting for the coordinator of %s: %s", run, err->msg);
        return STATUS_OK;
    }
    if (status == STATUS_OK && !done)
        say_waiting(f, "waiting for the coordinator of %s: it is stopped or starting", run);
    *done_p = status == STATUS_OK && done;
    return status;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

/* False: the run folder has no coordinator now. */
static bool find_coordinator(const struct follow *f, struct transport_address *address)
{
    char path[FILEIO_PATH_MAX], line[JOIN_LINE_MAX];
    const char *run = f->target.run_dir;
    if (!run[0]) return transport_address_parse(address, f->target.line, NULL) == STATUS_OK;
    return run_folder_locked(run, "lock") && run_folder_path(path, sizeof path, run, "address", NULL) == STATUS_OK &&
           run_folder_read_line(path, line, sizeof line, NULL) == STATUS_OK &&
           transport_address_parse(address, line, NULL) == STATUS_OK;
}

/* True: the failure passes, and a line says so. */
static bool passes(struct follow *f, enum status status, struct err *err)
{
    bool wrong_line = status == STATUS_INVALID && (f->answered || f->target.run_dir[0]);
    if (status == STATUS_NOTFOUND && f->model.described) return true; /* removed meanwhile: ask again */
    if (status == STATUS_MISMATCH && f->model.described && !f->model.loaded) {
        log_warn("%s", err->msg);
        f->taken_back = true;
        return true;
    }
    if (status != STATUS_CLOSED && status != STATUS_AGAIN && !wrong_line) return false;
    follow_link_close(&f->link);
    say_waiting(f, "waiting for the coordinator: %s", err->msg);
    return true;
}

/* The budget is used up: the coordinator of this folder writes its last checkpoint, and ends. */
static enum status take_last(struct follow *f, struct err *err)
{
    const char *run = f->target.run_dir;
    follow_link_close(&f->link);
    for (int i = 0; i < LAST_SAVE_POLLS && run_folder_locked(run, "lock"); i++) {
        TRY(interrupt_check(err));
        usleep(POLL_US);
    }
    return take_checkpoint(f, true, err);
}

static enum status turn(struct follow *f, bool *done_p, struct err *err)
{
    struct transport_address address;
    *err = (struct err){0};
    if (!find_coordinator(f, &address)) {
        follow_link_close(&f->link);
        return look_in_folder(f, done_p, err);
    }
    enum status status = look(f, &address, done_p, err);
    explicit_bzero(&address, sizeof address);
    if (status == STATUS_SPENT && f->target.run_dir[0]) {
        struct err spent = *err;
        TRY(take_last(f, err));
        *err = spent;
    }
    return passes(f, status, err) ? STATUS_OK : status;
}

static enum status follow(struct follow *f, struct err *err)
{
    for (bool done = false;;) {
        TRY(turn(f, &done, err));
        if (done) return STATUS_OK;
        if (f->link.t)
            TRY(follow_link_idle(&f->link, POLL_US, err));
        else
            usleep(POLL_US);
        TRY(interrupt_check(err));
    }
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    static struct follow f; /* large */
    const uint64_t *every = ctx;
    bool given = o->n_args == 2; /* otherwise ATOLL_JOIN */
    if (!*every) return err_set(err, STATUS_INVALID, "--every is 0: give a number of rounds");
    f.every = *every;
    enum status status = join_target_read(&f.target, given ? o->args[0] : NULL, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder or a join line, and OUT");
    TRY(status);
    if (f.target.run_dir[0] && !file_exists(f.target.run_dir))
        return err_set(err, STATUS_NOTFOUND, "run folder %s does not exist: give a run folder, or a join line",
                       f.target.run_dir);
    TRY(follow_out_open(&f.out, o->args[given], err));
    interrupt_catch();
    status = follow(&f, err);
    follow_link_close(&f.link);
    follow_model_finish(&f.model);
    if (f.files[0] && dir_remove_flat(f.files, NULL) != STATUS_OK) log_warn("cannot remove %s", f.files);
    if ((status == STATUS_INTERRUPTED || status == STATUS_SPENT) && f.out.written) {
        struct err why = *err;
        err_set(err, status, "%.300s%s%.300s holds round %" PRIu64 ", and the same command continues",
                status == STATUS_SPENT ? why.msg : "stopped", status == STATUS_SPENT ? "; " : ": ", f.out.path,
                f.out.label.round);
    }
    return status;
}

int cmd_follow(int argc, char **argv)
{
    uint64_t every = 1;
    const struct option_spec specs[] = {
        {"every", OPTION_COUNT, &every, "K", "rounds between two models (default 1); the last model always comes"},
    };
    struct options o = {
        .resumable = true,
        .program = "atoll follow",
        .usage = "[RUN|WHERE] OUT [options]",
        .about =
            "Keep the newest model of a run in OUT as a Hugging Face folder, until the run is done. It takes no place\n"
            "in the run. WHERE is a file with the join line, - for standard input, or the line itself (default:\n"
            "ATOLL_JOIN). OUT is a link that is replaced when the next folder, OUT.round_N, is complete;\n"
            "OUT/atoll.json names round, versions and theta_hash. Workers come first: while they transfer, a\n"
            "follower gets a tenth of their bytes.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run, &every);
}
