#include "coordinator/resume.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger/store_disk.h"
#include "coordinator/run_folder.h"

/* A begun run has a checkpoint, or its events if the checkpoints were removed. */
bool resume_holds_run(const char *dir)
{
    char path[FILEIO_PATH_MAX];
    struct stat events;
    if (run_folder_has(dir, STORE_SWITCH)) return true; /* the journal may be on its way */
    if (run_folder_path(path, sizeof path, dir, "journal", NULL) != STATUS_OK || run_folder_empty(path)) return false;
    if (run_folder_path(path, sizeof path, dir, "checkpoints", NULL) != STATUS_OK || !run_folder_empty(path))
        return true;
    if (run_folder_path(path, sizeof path, dir, "metrics.jsonl", NULL) != STATUS_OK) return true;
    return stat(path, &events) == 0 && events.st_size > 0;
}

/* Reads the configuration of the run in the folder into *begun. Returns false without a run. */
static bool read_config(const char *dir, struct config *begun)
{
    char path[FILEIO_PATH_MAX];
    struct config_sources sources;
    if (!resume_holds_run(dir)) return false;
    if (run_folder_path(path, sizeof path, dir, "config.yaml", NULL) != STATUS_OK) return false;
    int fd;
    if (file_open_plain(path, O_RDONLY, 0, &fd, NULL) != STATUS_OK) return false; /* reading a pipe would wait */
    close(fd);
    config_defaults(begun, &sources);
    return config_load(begun, &sources, path, NULL) == STATUS_OK;
}

/* auto continues a run. never and PATH need a folder without a run; but if the run started from PATH, repeating the
 * command continues it. */
enum status resume_check(const struct resume *r, struct err *err)
{
    if (!strcmp(r->how, "auto") || r->begun || !resume_holds_run(r->dir)) return STATUS_OK;
    return err_set(err, STATUS_STATE,
                   "%s already holds a run and --resume is %s: use --resume auto to continue it, or another --dir",
                   r->dir, r->how);
}

/* Returns true if the run in the folder started from the checkpoint that `how` names, or from any checkpoint of the run
 * that it names, as RUN or RUN/checkpoints/latest: the newest may have changed since. */
static bool find_begun(struct resume *r)
{
    char named[FILEIO_PATH_MAX];
    struct config begun;
    const char *from = begun.model.init_from;
    if (!read_config(r->dir, &begun) || run_folder_name(named, sizeof named, r->how, NULL) != STATUS_OK) return false;
    static const char latest[] = "/checkpoints/latest";
    size_t n = strlen(named), tail = sizeof latest - 1;
    if (n > tail && !strcmp(named + n - tail, latest)) n -= tail;
    if (strncmp(from, named, n) != 0 || (from[n] && strncmp(from + n, "/checkpoints/", 13) != 0)) return false;
    return (size_t)snprintf(r->init_dir, sizeof r->init_dir, "%s", from) < sizeof r->init_dir;
}

static enum status find_checkpoint(struct resume *r, struct err *err)
{
    if (!*r->how) return err_set(err, STATUS_INVALID, "--resume is empty: give auto, never or a checkpoint folder");
    if (!strcmp(r->how, "auto") || !strcmp(r->how, "never")) return STATUS_OK;
    r->begun = find_begun(r);
    if (r->begun) return STATUS_OK;
    if (run_folder_checkpoint(r->how, r->init_dir, sizeof r->init_dir, err) == STATUS_OK) return STATUS_OK;
    err_prefix(err, "--resume");
    return err->code = STATUS_INVALID;
}

enum status resume_find(struct resume *r, struct options *o, struct err *err)
{
    static const char name[] = "model.init_from=";
    TRY(find_checkpoint(r, err));
    if (!*r->init_dir) return STATUS_OK;
    for (size_t i = 0; i < o->n_settings; i++) {
        const char *setting = o->settings[i] + strspn(o->settings[i], "-"), *from = setting + sizeof name - 1;
        if (!strncmp(setting, name, sizeof name - 1) && strcmp(from, r->init_dir) != 0)
            return err_set(
                err, STATUS_INVALID,
                "--model.init_from=%.150s conflicts with --resume %.150s, which starts from %.150s: give one of them",
                from, r->how, r->init_dir);
    }
    if (o->n_settings == OPTIONS_SETTINGS_MAX) return err_set(err, STATUS_INVALID, "too many settings");
    snprintf(r->setting, sizeof r->setting, "--%s%s", name, r->init_dir);
    o->settings[o->n_settings++] = r->setting;
    return STATUS_OK;
}
