/* atoll workers and atoll revoke: the list of workers that may join a run (coordinator/admission/worker_list.h). A
 * running coordinator reads a changed list before the verb returns. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "coordinator/admission/worker_list.h"
#include "coordinator/run_dir.h"
#include "coordinator/run_folder.h"

enum { READ_US = 600000 }; /* a running coordinator looks at the list four times a second */

struct request {
    const char *run, *add, *readmit;
    const char *dir; /* the run folder, for this process: "." as another user */
};

typedef enum status edit_fn(struct worker_list *list, const struct options *o, const struct request *r,
                            struct err *err);

static enum status check_run(const char *run, struct err *err)
{
    if (run_folder_has(run, "keys")) return STATUS_OK;
    return err_set(err, STATUS_NOTFOUND,
                   "%s is not a run folder (it has no file keys): give the --dir of a coordinator", run);
}

/* Root acts as the owner of the run folder: the coordinator of that user has to read what the verb writes. Folders
 * above, such as /var/lib/private of systemd, may be closed to the owner, so the process enters the folder first. */
static enum status act_as_owner(struct request *r, struct err *err)
{
    struct stat st;
    r->dir = r->run;
    if (geteuid() != 0 || stat(r->run, &st) != 0 || st.st_uid == 0) return STATUS_OK;
    if (chdir(r->run) != 0 || setegid(st.st_gid) != 0 || seteuid(st.st_uid) != 0)
        return err_set(err, STATUS_IO, "cannot act as the owner of %.300s: %s", r->run, strerror(errno));
    r->dir = ".";
    return STATUS_OK;
}

/* Reads the list, changes it and writes it, under its lock. */
static enum status edit(const struct options *o, struct request *r, edit_fn *change, struct err *err)
{
    struct worker_list list;
    int lock;
    TRY(check_run(r->run, err));
    TRY(act_as_owner(r, err));
    TRY(worker_list_lock(r->dir, &lock, err));
    enum status status = worker_list_load(&list, r->dir, err);
    if (status == STATUS_OK) {
        status = change(&list, o, r, err);
        if (status == STATUS_OK) status = worker_list_save(&list, r->dir, err);
        worker_list_free(&list);
    }
    close(lock);
    if (status == STATUS_OK && run_folder_locked(r->dir, "lock")) usleep(READ_US);
    return status;
}

static enum status unknown(const char *run, const char *word, struct err *err)
{
    return err_set(err, STATUS_INVALID, "%s has no enrolled worker '%s': atoll workers %s lists them", run, word, run);
}

/* --- atoll workers ------------------------------------------------------------------------------------------------ */

static enum status add(struct worker_list *list, const struct options *o, const struct request *r, struct err *err)
{
    uint8_t key[WIRE_KEY];
    size_t n = strlen(r->add);
    if (!n || n >= WIRE_NAME_MAX || !text_is_name(r->add, n))
        return err_set(err, STATUS_INVALID, "--add: a name has 1 to %d bytes, without control or invisible characters",
                       WIRE_NAME_MAX - 1);
    if (o->n_args < 2 || strlen(o->args[1]) != 2 * WIRE_KEY || !number_hex(o->args[1], key, WIRE_KEY))
        return err_set(err, STATUS_INVALID, "--add NAME needs the public key that atoll keygen printed, %d digits",
                       2 * WIRE_KEY);
    TRY(worker_list_add(list, key, r->add, NULL, err));
    text_print(stdout, "enrolled %s\n", r->add);
    return STATUS_OK;
}

static void set_readmitted(struct listed_worker *w)
{
    w->readmit_s = (uint64_t)time(NULL);
}

static enum status readmit(struct worker_list *list, const struct options *o, const struct request *r, struct err *err)
{
    (void)o;
    if (!worker_list_each(list, r->readmit, set_readmitted)) return unknown(r->run, r->readmit, err);
    text_print(stdout, "readmitted %s\n", r->readmit);
    return STATUS_OK;
}

static void print_time(uint64_t seconds)
{
    char text[32] = "?";
    time_t at = (time_t)seconds;
    struct tm local;
    if (localtime_r(&at, &local)) strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    printf("  %s", text);
}

static enum status list_all(const char *run, struct err *err)
{
    struct worker_list list;
    TRY(check_run(run, err));
    TRY(worker_list_load(&list, run, err));
    int width = (int)strlen("name");
    for (size_t i = 0; i < list.n; i++)
        if ((int)strlen(list.workers[i].name) > width) width = (int)strlen(list.workers[i].name);
    printf("%-*s  state     since                key\n", width, "name");
    for (size_t i = 0; i < list.n; i++) {
        const struct listed_worker *w = &list.workers[i];
        char key[2 * WIRE_KEY + 1];
        text_print(stdout, "%-*s  %-8s", width, w->name, w->revoked ? "revoked" : "enrolled");
        print_time(w->enrolled_s);
        printf("  %s\n", number_hex_text(w->key, WIRE_KEY, key));
    }
    worker_list_free(&list);
    return STATUS_OK;
}

static enum status run_workers(struct options *o, void *ctx, struct err *err)
{
    struct request *r = ctx;
    r->run = o->args[0];
    if (r->add && r->readmit) return err_set(err, STATUS_INVALID, "--add and --readmit: give one of them");
    if (!r->add && o->n_args > 1)
        return err_set(err, STATUS_INVALID, "unexpected argument '%s': a key needs --add NAME", o->args[1]);
    if (r->add) return edit(o, r, add, err);
    if (r->readmit) return edit(o, r, readmit, err);
    return list_all(r->run, err);
}

int cmd_workers(int argc, char **argv)
{
    struct request r = {.run = NULL};
    const struct option_spec specs[] = {
        {"add", OPTION_TEXT, &r.add, "NAME", "enrol a worker beforehand: NAME and the key that atoll keygen printed"},
        {"readmit", OPTION_TEXT, &r.readmit, "NAME", "let a worker take part again that the coordinator put aside"},
    };
    struct options o = {
        .program = "atoll workers",
        .usage = "RUN [--add NAME KEY | --readmit NAME]",
        .about =
            "List the workers that may join a run, with their keys. A worker enters the list when it joins with the\n"
            "join line for the first time. atoll revoke takes it out.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run_workers, &r);
}

/* --- atoll revoke ------------------------------------------------------------------------------------------------- */

static void set_revoked(struct listed_worker *w)
{
    w->revoked = true;
}

/* The new enrolment key comes first: the coordinator reads it when the list changes. */
static enum status revoke_keys(struct worker_list *list, const struct options *o, const struct request *r,
                               struct err *err)
{
    size_t n = worker_list_each(list, o->args[1], set_revoked);
    if (!n) return unknown(r->run, o->args[1], err);
    TRY(run_dir_renew_enrolment(r->dir, err));
    text_print(stdout, "revoked %zu key%s of %s\n", n, n == 1 ? "" : "s", o->args[1]);
    return STATUS_OK;
}

static enum status run_revoke(struct options *o, void *ctx, struct err *err)
{
    struct request *r = ctx;
    r->run = o->args[0];
    TRY(edit(o, r, revoke_keys, err));
    text_print(stdout, "new workers need the new join line in %s/address; enrolled workers go on without it\n", r->run);
    return STATUS_OK;
}

int cmd_revoke(int argc, char **argv)
{
    struct request r = {.run = NULL};
    struct options o = {
        .program = "atoll revoke",
        .usage = "RUN NAME",
        .about =
            "Take the right to join a run away from a worker: by its name, or by one of its keys. Its connection ends\n"
            "within a second. The join line changes, because the worker knows it; other workers are not affected.",
        .args_min = 2,
        .args_max = 2,
    };
    return options_main(&o, argc, argv, run_revoke, &r);
}
