/* atoll generate: prints text from a checkpoint, token by token. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/run_folder.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "worker/model/generate_text.h"

static bool emit(void *ctx, const char *text, size_t size)
{
    (void)ctx;
    return fwrite(text, 1, size, stdout) == size && fflush(stdout) == 0;
}

struct request {
    uint64_t n_tokens, threads;
    struct generate_options options;
};

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct request *r = ctx;
    double temperature = r->options.temperature;
    char folder[FILEIO_PATH_MAX];
    if (r->options.ids && r->options.prompt)
        return err_set(err, STATUS_INVALID, "--prompt and --ids exclude each other: give one");
    if (!r->n_tokens || r->n_tokens > 1000000)
        return err_set(err, STATUS_INVALID, "--tokens is %" PRIu64 ": give 1 to 1000000", r->n_tokens);
    if (!(temperature >= 0 && temperature <= 100))
        return err_set(err, STATUS_INVALID, "--temperature is %g: give 0 to 100", temperature);
    if (!r->threads || r->threads > 1024)
        return err_set(err, STATUS_INVALID, "--threads is %" PRIu64 ": give 1 to 1024", r->threads);
    TRY(run_folder_checkpoint(o->args[0], folder, sizeof folder, err));
    const char *checked;
    bool recorded;
    TRY(run_folder_check(folder, &recorded, &checked, err));
    if (!recorded) log_info("%s: %s", folder, checked);
    r->options.n_tokens = (uint32_t)r->n_tokens;
    r->options.threads = (int)r->threads;
    TRY(generate_text(folder, &r->options, emit, NULL, err));
    printf("\n");
    return STATUS_OK;
}

int cmd_generate(int argc, char **argv)
{
    struct request r = {
        .n_tokens = 256, .threads = 1, .options = {.temperature = 0.8, .seed = 1, .on_cpu = "--device cpu"}};
    const struct option_spec specs[] = {
        {"prompt", OPTION_TEXT, &r.options.prompt, "TEXT", "start of the text (default: a newline)"},
        {"ids", OPTION_TEXT, &r.options.ids, "'1 2 3'", "start as token numbers; the output is numbers too"},
        {"tokens", OPTION_COUNT, &r.n_tokens, "N", "tokens to generate (default 256)"},
        {"temperature", OPTION_REAL, &r.options.temperature, "X",
         "0: the most likely token; 1: the model's distribution (default 0.8)"},
        {"seed", OPTION_COUNT, &r.options.seed, "S", "the same seed gives the same text (default 1)"},
        {"device", OPTION_TEXT, &r.options.device, "NAME", "auto, cpu or cuda:N (default auto)"},
        {"threads", OPTION_COUNT, &r.threads, "N", "compute threads (default 1)"},
    };
    struct options o = {
        .program = "atoll generate",
        .usage = "RUN|CHECKPOINT [options]",
        .about =
            "Generate text from the newest checkpoint of a run, or from a Hugging Face folder with GPT-2 or Llama.\n"
            "A checkpoint of a run is checked against the hashes in its coordinator_state.bin.\n"
            "Tokens are bytes. For a model with a tokenizer, give and read token numbers (--ids).",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &r);
}
