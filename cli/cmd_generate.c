/* atoll generate: prints text from a checkpoint, token by token. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/package_verb.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/hf_files.h"
#include "coordinator/run_folder.h"
#include "worker/model/generate_text.h"

/* A terminal obeys control bytes of the model: it gets visible characters. A file or a pipe gets the bytes. */
static bool emit(void *ctx, const char *text, size_t size)
{
    struct text_stream *terminal = ctx;
    bool good = terminal ? text_stream_put(terminal, text, size, stdout) : fwrite(text, 1, size, stdout) == size;
    return good && fflush(stdout) == 0;
}

struct request {
    uint64_t n_tokens, threads;
    struct generate_options options;
    const char *tokenizer; /* for atoll-generate; NULL: the checkpoint's */
};

/* Writes why atoll-generate of the Python package must generate this text; false: no need. It calls `atoll generate`
 * with --ids itself, so numbers are always handled here. */
static bool needs_package(const struct request *r, const char *folder, char *why, size_t cap)
{
    struct model_config model;
    enum status known = hf_config_load(&model, folder, NULL);
    if (r->options.ids) return false;
    if (run_folder_has(folder, "adapter_config.json"))
        snprintf(why, cap, "%.200s holds an adapter and", folder);
    else if (known == STATUS_UNSUPPORTED)
        snprintf(why, cap, "the model in %.200s is none of gpt2 and llama and", folder);
    else if (r->tokenizer)
        snprintf(why, cap, "--tokenizer");
    else if (known == STATUS_OK && (!model.bytes || hf_files_has_tokenizer(folder)))
        snprintf(why, cap, "give token numbers (--ids '1 2 3'): text for the tokenizer of %.200s", folder);
    return why[0];
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct request *r = ctx;
    double temperature = r->options.temperature;
    char folder[FILEIO_PATH_MAX], age[2 * FILEIO_PATH_MAX], why[300] = "";
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
    if (*run_folder_age(folder, age, sizeof age)) log_info("reading %s", age);
    if (needs_package(r, folder, why, sizeof why)) return package_take("generate", why, err);
    if (!recorded) log_info("%s: %s", folder, checked);
    r->options.n_tokens = (uint32_t)r->n_tokens;
    r->options.threads = (int)r->threads;
    struct text_stream terminal = {.n = 0};
    TRY(generate_text(folder, &r->options, emit, isatty(STDOUT_FILENO) ? &terminal : NULL, err));
    text_stream_end(&terminal, stdout);
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
        {"tokenizer", OPTION_TEXT, &r.tokenizer, "PATH", "a tokenizer.json or its folder (default: the checkpoint's)"},
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
            "A terminal gets the replacement character in place of control bytes; a file or a pipe gets the bytes.\n"
            "Tokens are bytes. For a model with a tokenizer, give and read token numbers (--ids), or install the\n"
            "Python package: atoll-generate then takes and writes text, also for other models. To install "
            "it:\n" PACKAGE_INSTALL ".",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &r);
}
