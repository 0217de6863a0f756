#include "cli/launch/launch_link.h"

#include <stdio.h>
#include <string.h>

#include "cli/terminal.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/run_folder.h"

enum status launch_link_parse(struct launch_link *l, const char *text, size_t n, struct err *err)
{
    if (!*text) return STATUS_OK;
    l->specs = mem_alloc(n, sizeof *l->specs);
    l->join_files = mem_alloc(n, sizeof *l->join_files);
    if (!l->specs || !l->join_files) return err_set(err, STATUS_NOMEM, "out of memory");
    l->n = n;
    enum status status = link_specs_parse(l->specs, n, text, err);
    return status == STATUS_OK ? status : err_prefix(err, "--link");
}

static bool has_relay(const struct launch_link *l, size_t i)
{
    return i < l->n && !link_spec_is_none(&l->specs[i]);
}

static void print_link(const char *worker, const char *spec)
{
    char line[LINK_SPEC_MAX + 64];
    int n = snprintf(line, sizeof line, "%s joins over an emulated link: %s", worker, spec);
    terminal_line("launch: ", line, (size_t)n);
}

static enum status relay_build(struct launch_link *l, struct supervisor *s, size_t worker, const char *program,
                               const char *run, struct err *err)
{
    char name[32], prefix[32], file[48], spec[LINK_SPEC_MAX];
    char *join_file = l->join_files[s->n_relays];
    snprintf(name, sizeof name, "relay-%zu", worker);
    snprintf(prefix, sizeof prefix, "[r%zu] ", worker);
    snprintf(file, sizeof file, "%s.join", s->workers[worker].name);
    TRY(run_folder_path(join_file, sizeof *l->join_files, l->folder, file, err));
    struct child *child = &s->relays[s->n_relays++];
    child_init(child, name, prefix, false);
    child->ready_path = join_file;
    enum status status = child_arg(child, "%s", program);
    if (status == STATUS_OK) status = child_arg(child, "relay");
    if (status == STATUS_OK) status = child_arg(child, "%s", link_spec_print(&l->specs[worker], spec));
    if (status == STATUS_OK) status = child_arg(child, "--join=%s", run);
    if (status == STATUS_OK) status = child_arg(child, "--join-file=%s", join_file);
    if (status == STATUS_OK) print_link(s->workers[worker].name, spec);
    return status == STATUS_OK ? status : err_set(err, status, "the path %s is too long: choose a shorter --dir", run);
}

enum status launch_link_build(struct launch_link *l, struct supervisor *s, const char *program, const char *run,
                              const char *logs, struct err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) n += has_relay(l, i);
    if (!n) return STATUS_OK;
    s->relays = mem_alloc(n, sizeof *s->relays);
    if (!s->relays) return err_set(err, STATUS_NOMEM, "out of memory");
    TRY(run_folder_path(l->folder, sizeof l->folder, run, "links", err));
    TRY(dir_make(l->folder, err));
    for (size_t i = 0; i < l->n; i++) {
        if (!has_relay(l, i)) continue;
        TRY(relay_build(l, s, i, program, run, err));
        TRY(child_log_open(&s->relays[s->n_relays - 1], logs, err));
    }
    return STATUS_OK;
}

const char *launch_link_join_file(const struct launch_link *l, const struct supervisor *s, size_t i)
{
    size_t before = 0;
    for (size_t k = 0; k < i; k++) before += has_relay(l, k);
    return has_relay(l, i) ? s->relays[before].ready_path : NULL;
}

void launch_link_finish(struct launch_link *l, struct supervisor *s)
{
    struct err err;
    if (l->folder[0] && !s->removed && dir_remove_flat(l->folder, &err) != STATUS_OK) log_warn("%s", err.msg);
    for (size_t i = 0; i < s->n_relays; i++) child_finish(&s->relays[i]);
    mem_free(s->relays);
    mem_free(l->join_files);
    mem_free(l->specs);
}
