/* atoll codec list: what a codec specification may be made of. atoll codec test SPEC: is it one? */
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"
#include "common/options.h"
#include "compress/codec.h"

int cmd_codec(int argc, char **argv)
{
    struct options o = {
        .program = "atoll codec",
        .usage = "list | test SPEC",
        .about = "list: the stages a codec specification such as int8:256+lz4 is made of. test: check one.",
        .args_min = 1,
        .args_max = 2,
    };
    struct err err = {0};
    enum status status = options_parse(&o, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && o.n_args == 1 && !strcmp(o.args[0], "list")) {
        codec_list(stdout);
        return EXIT_DONE;
    }
    if (status == STATUS_OK && o.n_args == 2 && !strcmp(o.args[0], "test")) {
        status = codec_spec_check(o.args[1], &err);
        if (status == STATUS_OK) return printf("%s is a codec\n", o.args[1]), EXIT_DONE;
    } else if (status == STATUS_OK) {
        status = err_set(&err, STATUS_INVALID, "atoll codec %s%s%s: usage is atoll codec %s", o.args[0],
                         o.n_args > 1 ? " " : "", o.n_args > 1 ? o.args[1] : "", o.usage);
    }
    return options_fail("atoll", &err);
}
