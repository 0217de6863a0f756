/* atoll generate: text from a checkpoint, as it is made. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/run_folder.h"
#include "cli/verbs.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "worker/model/generate_text.h"

static bool emit(void *ctx, const char *text, size_t size)
{
    (void)ctx;
    return fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0;
}

int cmd_generate(int argc, char **argv)
{
    uint64_t n_tokens = 256, seed = 1, threads = 1;
    struct generate_options options = {.temperature = 0.8, .on_cpu = "--device cpu"};
    const struct option_spec specs[] = {
        {"prompt", OPTION_TEXT, &options.prompt, "TEXT", "what the text starts with (a line break)"},
        {"ids", OPTION_TEXT, &options.ids, "'1 2 3'", "the same as numbers of tokens, written as numbers, too"},
        {"tokens", OPTION_COUNT, &n_tokens, "N", "tokens to make (256)"},
        {"temperature", OPTION_REAL, &options.temperature, "X",
         "0: always the likeliest token; 1: as the model says (0.8)"},
        {"seed", OPTION_COUNT, &seed, "S", "same seed, same text (1)"},
        {"device", OPTION_TEXT, &options.device, "NAME", "auto, cpu or cuda:N (auto)"},
        {"threads", OPTION_COUNT, &threads, "N", "compute threads (1)"},
    };
    struct options o = {
        .program = "atoll generate",
        .usage = "RUN|CHECKPOINT [options]",
        .about = "Write text with the newest checkpoint of a run, or a GPT-2 or Llama folder of Hugging Face layout.\n"
                 "Tokens are bytes; of a model with a tokenizer they are given and written as numbers (--ids).",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_min = 1,
        .args_max = 1,
    };
    char folder[FILEIO_PATH_MAX];
    struct err err = {0};
    enum status status = options_parse(&o, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && options.ids && options.prompt)
        status = err_set(&err, STATUS_INVALID, "--prompt and --ids are two beginnings: give one");
    if (status == STATUS_OK && (!n_tokens || n_tokens > 1000000))
        status = err_set(&err, STATUS_INVALID, "--tokens is %" PRIu64 ": give 1 to 1000000", n_tokens);
    if (status == STATUS_OK && !(options.temperature >= 0 && options.temperature <= 100))
        status = err_set(&err, STATUS_INVALID, "--temperature is %g: give 0 to 100", options.temperature);
    if (status == STATUS_OK && (!threads || threads > 1024))
        status = err_set(&err, STATUS_INVALID, "--threads is %" PRIu64 ": give 1 to 1024", threads);
    if (status == STATUS_OK) status = run_checkpoint(o.args[0], folder, sizeof folder, &err);
    if (status == STATUS_OK) {
        options.n_tokens = (uint32_t)n_tokens;
        options.seed = seed;
        options.threads = (int)threads;
        status = generate_text(folder, &options, emit, NULL, &err);
    }
    if (status != STATUS_OK) return options_fail("atoll", &err);
    printf("\n");
    return EXIT_DONE;
}
