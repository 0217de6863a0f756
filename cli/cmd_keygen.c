/* atoll keygen: makes the key of a worker in its folder, and prints the public key. */
#include <stdio.h>

#include "cli/verbs.h"
#include "common/base/number.h"
#include "common/config/options.h"
#include "worker/session/worker_dir.h"

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct worker_dir dir;
    char text[2 * WIRE_KEY + 1];
    (void)ctx;
    TRY(worker_dir_open(&dir, o->args[0], err));
    printf("%s\n", number_hex_text(dir.key.public_key, WIRE_KEY, text));
    worker_dir_close(&dir);
    return STATUS_OK;
}

int cmd_keygen(int argc, char **argv)
{
    struct options o = {
        .program = "atoll keygen",
        .usage = "DIR",
        .about = "Make the key of a worker in its folder DIR (atoll-worker --dir DIR), and print its public key.\n"
                 "The operator of a run enrols it: atoll workers RUN --add NAME KEY. A key that is there stays.",
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, NULL);
}
