#include <errno.h>
#include <glob.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wordexp.h>

#include "cli/init/init.h"
#include "cli/link/link_probe.h"
#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/base/pool.h"
#include "common/base/text.h"
#include "common/os/json_file.h"

enum { META_MAX = 1 << 16, LINE_MAX_BYTES = 2048, THREADS_MAX = 64, LOCAL_WORKERS = 2, PORT_MOST = 65535 };

static const char default_link[] = "100mbit,rtt=30ms", default_budget[] = "1h";

/* --- data --------------------------------------------------------------------------------------------------------- */

static enum status absolute(const char *path, char out[FILEIO_PATH_MAX], struct err *err)
{
    char *whole = realpath(path, NULL);
    if (!whole) return err_set(err, STATUS_INVALID, "cannot find %.300s: %s", path, strerror(errno));
    bool fits = (size_t)snprintf(out, FILEIO_PATH_MAX, "%s", whole) < FILEIO_PATH_MAX;
    free(whole);
    return fits ? STATUS_OK : err_set(err, STATUS_INVALID, "the path of %.300s is too long", path);
}

static bool has_shards(const char *folder)
{
    char pattern[FILEIO_PATH_MAX + 16];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/train_*.bin", folder);
    bool any = !glob(pattern, 0, NULL, &found) && found.gl_pathc > 0;
    globfree(&found);
    return any;
}

/* The tokens and the vocabulary of prepared shards, from meta.json. */
static enum status read_meta(struct init_answers *a, struct err *err)
{
    char path[FILEIO_PATH_MAX + 16];
    void *text;
    size_t size;
    json_int_t vocab = 0, tokens = 0;
    const char *tokenizer = "bytes";
    snprintf(path, sizeof path, "%s/meta.json", a->shards);
    if (file_read(path, META_MAX, &text, &size, NULL) != STATUS_OK)
        return err_set(err, STATUS_INVALID, "%.300s has no meta.json: make the shards with atoll prepare", a->shards);
    json_t *root = json_loadb(text, size, 0, NULL);
    mem_free(text);
    bool good = !json_unpack(root, "{s:I, s:I}", "vocab_size", &vocab, "train_tokens", &tokens) && vocab > 0;
    json_unpack(root, "{s:s}", "tokenizer", &tokenizer);
    a->vocab_size = (uint64_t)vocab;
    a->tokens = (double)tokens;
    snprintf(a->tokenizer, sizeof a->tokenizer, "%s", strcmp(tokenizer, "bytes") ? "none" : "bytes");
    json_decref(root);
    return good ? STATUS_OK : err_set(err, STATUS_INVALID, "%.300s names no vocab_size and train_tokens", path);
}

static enum status take_data(struct init_answers *a, const struct init_given *given, struct err *err)
{
    struct stat st;
    a->n_files = 0;
    a->tokens = 0;
    for (size_t i = 0; i < given->data.n; i++) {
        char path[FILEIO_PATH_MAX];
        TRY(absolute(given->data.texts[i], path, err));
        if (stat(path, &st)) return err_set(err, STATUS_INVALID, "cannot read %.300s: %s", path, strerror(errno));
        if (S_ISDIR(st.st_mode) && !has_shards(path))
            return err_set(err, STATUS_INVALID,
                           "--data: %.300s holds no train_*.bin: give text files, or a folder that atoll prepare made",
                           given->data.texts[i]);
        if (S_ISDIR(st.st_mode) && given->data.n > 1)
            return err_set(err, STATUS_INVALID, "--data: give text files, or one folder of shards");
        if (S_ISDIR(st.st_mode)) {
            snprintf(a->shards, sizeof a->shards, "%s", path);
            return read_meta(a, err);
        }
        snprintf(a->files[a->n_files++], FILEIO_PATH_MAX, "%s", path);
        a->tokens += (double)st.st_size; /* a token is a byte */
    }
    a->vocab_size = 256;
    snprintf(a->tokenizer, sizeof a->tokenizer, "bytes");
    return STATUS_OK;
}

/* --- the other answers -------------------------------------------------------------------------------------------- */

static enum status take_model(struct init_answers *a, const char *text, struct err *err)
{
    static const char *const names[] = {"tiny", "small", "gpt2"};
    size_t n = strlen(text);
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) return a->model = (enum init_model)i, STATUS_OK;
    if (n > 3 && !strcmp(text + n - 3, ".py")) {
        a->model = INIT_SCRIPT;
        return absolute(text, a->model_path, err);
    }
    a->model = INIT_FOLDER;
    char path[FILEIO_PATH_MAX + 16];
    snprintf(path, sizeof path, "%.4000s/config.json", text);
    if (!file_exists(path))
        return err_set(err, STATUS_INVALID,
                       "--model is '%.200s': give tiny, small, gpt2, a Hugging Face folder or a PyTorch script (.py)",
                       text);
    return absolute(text, a->model_path, err);
}

/* "3", or the ssh names of the others: "box1,box2". */
static enum status take_machines(struct init_answers *a, const char *text, struct err *err)
{
    uint64_t n;
    memset(a->names, 0, sizeof a->names);
    if (number_whole(text, &n)) {
        if (!n || n > PLAN_WORKERS_MAX)
            return err_set(err, STATUS_INVALID, "--machines is %.20s: give 1 to %d", text, PLAN_WORKERS_MAX);
        a->machines = (uint32_t)n;
        return STATUS_OK;
    }
    if ((size_t)snprintf(a->names_text, sizeof a->names_text, "%s", text) >= sizeof a->names_text)
        return err_set(err, STATUS_INVALID, "--machines is too long");
    a->machines = 1;
    for (char *save, *name = strtok_r(a->names_text, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
        size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_@");
        if (name[good] || name[0] == '-' || a->machines == PLAN_WORKERS_MAX)
            return err_set(err, STATUS_INVALID,
                           "--machines: '%.60s': give a number, or the ssh names of the other machines: box1,box2",
                           name);
        a->names[a->machines - 1] = name;
        a->machines++;
    }
    return STATUS_OK;
}

/* A SPEC, or a coordinator to measure: a join line, its file, a run folder. */
static enum status take_link(struct init_answers *a, const char *text, struct err *err)
{
    struct link_probe probe;
    struct link_spec link;
    struct err why = {0};
    if (link_spec_parse(&link, text, &why) != STATUS_OK) {
        if (strncmp(text, "tcp://", 6) != 0 && !file_exists(text))
            return err_set(err, STATUS_INVALID, "--link: %.300s; or give a join line or its file, to measure", why.msg);
        fprintf(stderr, "measuring the link\n");
        TRY(link_probe_target(&probe, text, err));
        link = link_probe_spec(&probe);
        a->measured = true;
    }
    link_spec_print(&link, a->link);
    for (uint32_t i = 0; i < a->workers; i++) a->links[i] = link;
    return STATUS_OK;
}

static enum status wrong_budget(const char *text, struct err *err)
{
    return err_set(err, STATUS_INVALID, "--budget is '%.60s': give hours, traffic or both: 2h, 30min, 10GB, 2h,10GB",
                   text);
}

static enum status take_budget(struct init_answers *a, const char *text, struct err *err)
{
    static const struct {
        const char *unit;
        double hours, gb;
    } units[] = {{"min", 1.0 / 60, 0}, {"h", 1, 0}, {"d", 24, 0}, {"MB", 0, 1e-3}, {"GB", 0, 1}, {"TB", 0, 1e3}};
    char words[128], *save;
    a->hours = a->gb = 0;
    if (!strcmp(text, "none")) return STATUS_OK;
    if ((size_t)snprintf(words, sizeof words, "%s", text) >= sizeof words) return wrong_budget(text, err);
    for (char *word = strtok_r(words, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
        char *end;
        double value = strtod(word, &end);
        size_t i = 0;
        while (i < sizeof units / sizeof *units && strcmp(end, units[i].unit) != 0) i++;
        if (end == word || i == sizeof units / sizeof *units || !(value > 0 && value < 1e6))
            return wrong_budget(text, err);
        if (units[i].hours > 0) a->hours = value * units[i].hours;
        if (units[i].gb > 0) a->gb = value * units[i].gb;
    }
    return a->hours > 0 || a->gb > 0 ? STATUS_OK : wrong_budget(text, err);
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

struct asking {
    bool terminal;
    char lines[5][LINE_MAX_BYTES]; /* what was typed; flags borrow from argv */
    int n;                         /* of the question */
    char taken[512];               /* defaults that were taken without a question */
    wordexp_t words;               /* of the line about data, if `split` */
    bool split;
};

/* One line of the terminal; an empty one is the default. INTERRUPTED: the input ended. */
static enum status ask(struct asking *q, const char *question, const char *preset, const char **out, struct err *err)
{
    char *line = q->lines[q->n];
    if (preset)
        text_print(stderr, "%s [%s]: ", question, preset);
    else
        text_print(stderr, "%s: ", question);
    if (!fgets(line, LINE_MAX_BYTES, stdin))
        return err_set(err, STATUS_INTERRUPTED, "the input ended: nothing is written");
    line[strcspn(line, "\r\n")] = '\0';
    *out = line[0] ? line : preset;
    return STATUS_OK;
}

/* True: the failure was a wrong answer. Says why, and the question comes again. */
static bool asks_again(enum status status, struct err *err)
{
    if (status == STATUS_OK || status == STATUS_INTERRUPTED || status == STATUS_NOMEM) return false;
    text_print(stderr, "%s\n", err->msg);
    *err = (struct err){0};
    return true;
}

typedef enum status take_fn(struct init_answers *a, const char *text, struct err *err);

/* Takes *given, or sets it if it is NULL: by a question at a terminal, until the answer is right, or by the preset.
 * name: of the flag, "machines". */
static enum status need(struct asking *q, struct init_answers *a, const char *name, const char *question,
                        const char *preset, const char **given, take_fn *take, struct err *err)
{
    if (*given) return take(a, *given, err);
    if (!q->terminal) {
        text_add(q->taken, sizeof q->taken, "%s--%s %s", q->taken[0] ? ", " : "", name, preset);
        return take(a, *given = preset, err);
    }
    for (enum status status;;) {
        TRY(ask(q, question, preset, given, err));
        status = take(a, *given, err);
        if (asks_again(status, err)) continue;
        q->n++;
        return status;
    }
}

/* The paths of a line, as a shell reads them: quotes, ~ and *. A line that is a path itself is one. */
static enum status split_paths(struct asking *q, const char *line, struct option_texts *out, struct err *err)
{
    if (file_exists(line)) {
        out->texts[out->n++] = line;
        return STATUS_OK;
    }
    if (wordexp(line, &q->words, WRDE_NOCMD | WRDE_UNDEF | (q->split ? WRDE_REUSE : 0)))
        return err_set(err, STATUS_INVALID, "cannot read '%.300s' as paths: put quotes around names with spaces", line);
    q->split = true;
    if (q->words.we_wordc > INIT_FILES_MAX)
        return err_set(err, STATUS_INVALID, "%zu files are more than %d: put them into one with cat", q->words.we_wordc,
                       INIT_FILES_MAX);
    for (size_t i = 0; i < q->words.we_wordc; i++) out->texts[out->n++] = q->words.we_wordv[i];
    return STATUS_OK;
}

static enum status ask_data(struct asking *q, struct init_given *given, struct err *err)
{
    const char *line = NULL;
    given->data.n = 0;
    TRY(ask(q, "1. Data: text files, or a folder that atoll prepare made", NULL, &line, err));
    return line ? split_paths(q, line, &given->data, err)
                : err_set(err, STATUS_INVALID, "no data: give text files, or a folder that atoll prepare made");
}

static enum status need_data(struct asking *q, struct init_answers *a, struct init_given *given, struct err *err)
{
    if (given->data.n) return take_data(a, given, err);
    if (!q->terminal)
        return err_set(err, STATUS_INVALID, "--data is missing: give text files, or a folder that atoll prepare made");
    for (enum status status;;) {
        status = ask_data(q, given, err);
        if (status == STATUS_OK) status = take_data(a, given, err);
        if (asks_again(status, err)) continue;
        q->n++;
        return status;
    }
}

enum status init_ask(struct init_answers *a, struct init_given *given, struct err *err)
{
    static struct asking q; /* large */
    *a = (struct init_answers){.port = (uint32_t)given->port};
    q.terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (!given->port || given->port > PORT_MOST)
        return err_set(err, STATUS_INVALID, "--port is %llu: give 1 to %d", (unsigned long long)given->port, PORT_MOST);
    bool script = given->model && strlen(given->model) > 3 && !strcmp(given->model + strlen(given->model) - 3, ".py");
    TRY(script && !given->data.n ? take_data(a, given, err) : need_data(&q, a, given, err));
    TRY(need(&q, a, "model",
             "2. Model: tiny (0.8 M parameters), small (10.7 M), gpt2 (124 M, for GPUs), a Hugging Face folder or a "
             "PyTorch script",
             "tiny", &given->model, take_model, err));
    TRY(need(&q, a, "machines", "3. Machines that train, this one included; or the ssh names of the others: box1,box2",
             "2", &given->machines, take_machines, err));
    a->workers = a->machines > 1 ? a->machines : LOCAL_WORKERS;
    int cores = pool_cores(THREADS_MAX);
    a->threads = (uint32_t)(a->machines > 1 || cores < LOCAL_WORKERS ? cores : cores / LOCAL_WORKERS);
    if (a->machines > 1 && a->model != INIT_SCRIPT)
        TRY(need(&q, a, "link",
                 "4. Link between them: a SPEC, or a join line (its file) of a running coordinator to measure",
                 default_link, &given->link, take_link, err));
    else
        TRY(take_link(a, a->machines > 1 && given->link ? given->link : "none", err));
    TRY(need(&q, a, "budget", "5. Budget: hours, traffic or both: 2h, 10GB, none", default_budget, &given->budget,
             take_budget, err));
    if (q.taken[0]) text_print(stderr, "taken without a question: %s\n", q.taken);
    return STATUS_OK;
}
