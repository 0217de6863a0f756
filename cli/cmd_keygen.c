/* atoll keygen: makes the key of a worker in its folder and prints the public key, or makes the keys of a run in the
 * run folder and prints the join line. Both come before the program that uses them starts. */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/base/number.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "coordinator/admission/run_keys.h"
#include "coordinator/run_dir.h"
#include "wire/endpoint.h"
#include "wire/join_target.h"
#include "wire/transport.h"
#include "worker/session/worker_dir.h"

static enum status make_worker_key(const char *path, struct err *err)
{
    struct worker_dir dir;
    char text[2 * WIRE_KEY + 1];
    TRY(worker_dir_open(&dir, path, err));
    printf("%s\n", number_hex_text(dir.key.public_key, WIRE_KEY, text));
    worker_dir_close(&dir);
    return STATUS_OK;
}

/* address: HOST or HOST:PORT that workers dial. */
static enum status make_run_keys(const char *run, const char *address, struct err *err)
{
    struct transport_address a = {.has_secret = true};
    struct run_keys keys;
    char line[JOIN_LINE_MAX];
    enum status status = endpoint_advertised(a.endpoint, sizeof a.endpoint, address, "tcp://*:29600", err);
    if (status != STATUS_OK) return err_prefix(err, "--coordinator"), status;
    TRY(run_dir_check_free(run, err));
    TRY(dir_make(run, err));
    TRY(run_keys_read(run, &keys, err));
    memcpy(a.server_key, keys.server_public, sizeof a.server_key);
    memcpy(a.secret, keys.enrol_secret, sizeof a.secret);
    transport_address_format(&a, line, sizeof line);
    printf("%s\n", line);
    explicit_bzero(&keys, sizeof keys);
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    const char *const *coordinator = ctx;
    return *coordinator ? make_run_keys(o->args[0], *coordinator, err) : make_worker_key(o->args[0], err);
}

int cmd_keygen(int argc, char **argv)
{
    const char *coordinator = NULL;
    const struct option_spec specs[] = {
        {"coordinator", OPTION_TEXT, &coordinator, "HOST",
         "make the keys of a run instead, in the run folder DIR, and print its join line:\n"
         "                           workers will reach the coordinator at HOST or HOST:PORT"},
    };
    struct options o = {
        .program = "atoll keygen",
        .usage = "DIR [--coordinator HOST[:PORT]]",
        .about = "Make the key of a worker in its folder DIR (atoll-worker --dir DIR), and print its public key.\n"
                 "The operator of a run enrols it: atoll workers RUN --add NAME KEY. Keys that are there stay.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, (void *)(uintptr_t)&coordinator);
}
