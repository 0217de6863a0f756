#include <stdlib.h>
#include <string.h>

#include "cli/init/init.h"
#include "common/base/mem.h"

enum { COMMENT_COLUMN = 34 };

/* --- run.yaml ----------------------------------------------------------------------------------------------------- */

/* A YAML text in double quotes. */
static void quote(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', out);
        fputc(*c, out);
    }
    fputc('"', out);
}

static void write_row(FILE *out, const struct init_setting *row)
{
    long begin = ftell(out);
    fprintf(out, "  %s: ", row->key);
    if (row->text)
        quote(out, row->value);
    else
        fputs(row->value, out);
    long width = ftell(out) - begin;
    if (row->comment[0])
        fprintf(out, "%*s # %s", width < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - width) : 0, "", row->comment);
    fputc('\n', out);
}

static void write_all(FILE *out, const struct init_settings *s)
{
    const char *section = "";
    fprintf(out, "# Made by atoll init. `atoll config help` explains all keys, `atoll plan` computes other settings.\n"
                 "# Each key is also a flag, which wins: --train.sync_every=50\n");
    for (uint32_t i = 0; i < s->n; i++) {
        if (strcmp(s->rows[i].section, section) != 0) fprintf(out, "%s:\n", s->rows[i].section);
        section = s->rows[i].section;
        write_row(out, &s->rows[i]);
    }
}

/* The file must give a run: a program that reads it later has no better chance. */
static enum status check(const char *text, size_t size, const char *path, struct err *err)
{
    static struct config config; /* large */
    static struct config_sources sources;
    config_defaults(&config, &sources);
    TRY(config_parse(&config, &sources, text, size, path, CONFIG_FILE, err));
    return config_resolve(&config, &sources, err);
}

enum status init_write(const struct init_settings *s, const char *dir, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    char *text = NULL;
    size_t size = 0;
    if (snprintf(path, sizeof path, "%s/run.yaml", dir) >= (int)sizeof path)
        return err_set(err, STATUS_INVALID, "the path of %.200s is too long", dir);
    FILE *out = open_memstream(&text, &size);
    if (!out) return err_set(err, STATUS_NOMEM, "no memory for run.yaml");
    write_all(out, s);
    if (fclose(out)) {
        free(text);
        return err_set(err, STATUS_NOMEM, "no memory for run.yaml");
    }
    enum status status = check(text, size, path, err);
    if (status == STATUS_OK) status = dir_make(dir, err);
    if (status == STATUS_OK) status = file_write(path, text, size, err);
    free(text);
    return status;
}

/* --- commands ----------------------------------------------------------------------------------------------------- */

static void shell_word(FILE *out, const char *text)
{
    size_t plain = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-+=:,@%");
    if (*text && !text[plain]) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", out);
        else
            fputc(*c, out);
    }
    fputc('\'', out);
}

static void go_to(FILE *out, const char *dir)
{
    if (!strcmp(dir, ".")) return;
    fputs("    cd ", out);
    shell_word(out, dir);
    fputc('\n', out);
}

static void prepare(FILE *out, const struct init_answers *a)
{
    if (!a->n_files) return;
    fputs("    atoll prepare data", out);
    for (uint32_t i = 0; i < a->n_files; i++) {
        fputc(' ', out);
        shell_word(out, a->files[i]);
    }
    fputc('\n', out);
}

static void worker(FILE *out, const char *prefix, const char *join, const char *name, const char *data)
{
    fprintf(out, "    %satoll-worker --join %s --name ", prefix, join);
    shell_word(out, name);
    fprintf(out, " --data.train='%s/train_*.bin' --data.val='%s/val_*.bin' --train.threads=$(nproc)\n", data, data);
}

static void other_machine(FILE *out, const struct init_answers *a, uint32_t i)
{
    char name[32];
    const char *data = a->shards[0] ? a->shards : "data", *host = a->names[i];
    snprintf(name, sizeof name, "machine-%u", i + 2);
    const char *at = host ? strchr(host, '@') : NULL;
    if (!host) {
        fprintf(
            out,
            "\n# Machine %u. Copy the folder %s to it, and the last line of run/address, a secret, as the file join "
            "(mode 0600).\n",
            i + 2, data);
        worker(out, "", "join", name, "data");
        return;
    }
    fprintf(out, "\n# Machine %u: %s. The line in run/address is a secret.\n", i + 2, host);
    fputs("    rsync -a ", out);
    shell_word(out, data);
    fprintf(out, "/ %s:data/\n", host);
    fprintf(out, "    tail -n 1 run/address | ssh %s 'umask 077; cat > join'\n", host);
    fprintf(out,
            "    ssh %s \"atoll-worker --join join --name %s --data.train='data/train_*.bin' "
            "--data.val='data/val_*.bin' --train.threads=\\$(nproc)\"\n",
            host, at ? at + 1 : host);
}

void init_commands(const struct init_answers *a, const char *dir, FILE *out)
{
    const char *data = a->shards[0] ? a->shards : "data";
    if (a->machines == 1) {
        fputs("\n# This machine. With several GPUs, give as many workers.\n", out);
        go_to(out, dir);
        prepare(out, a);
        fprintf(out, "    atoll launch run.yaml --workers %u --dir run --train.threads=%u\n", a->workers, a->threads);
        fputs("\n# In another terminal: what the run does; the same in a browser.\n", out);
        go_to(out, dir);
        fputs("    atoll status run --watch\n    atoll page run\n", out);
        return;
    }
    fputs("\n# Machine 1, this one: the coordinator.\n", out);
    go_to(out, dir);
    prepare(out, a);
    fputs("    atoll-coordinator run.yaml --dir run\n", out);
    fputs("\n# Machine 1, a second terminal, when the coordinator listens: it trains, too.\n", out);
    go_to(out, dir);
    worker(out, "", "run", "machine-1", data);
    if (a->names[0]) {
        fputs("\n# Machine 1, a third terminal: the other machines.\n", out);
        go_to(out, dir);
    }
    for (uint32_t i = 0; i + 1 < a->machines; i++) other_machine(out, a, i);
    fputs("\n# Machine 1, at any time: what the run does or waits for; the same in a browser.\n", out);
    go_to(out, dir);
    fputs("    atoll status run --watch\n    atoll page run\n", out);
}

void init_script_commands(const struct init_answers *a, const struct init_given *given, FILE *out)
{
    fprintf(out,
            "# Three lines make a script a worker (docs/your-loop.md; Trainer: docs/huggingface.md):\n\n"
            "    run = atoll.launch(\"runs/mine\", max_steps=3000, every=30, batch_size=16)\n"
            "    with atoll.Worker(model, optimizer, join=run) as worker:\n"
            "        for batch in atoll.batches(dataset, worker, batch_size=16):\n"
            "            ...  # the loop as before\n\n"
            "# Machine 1, this one. It prints the same command for the others, and listens on port 29600.\n"
            "    python %s\n",
            given->model);
    for (uint32_t i = 0; i + 1 < a->machines; i++) {
        if (a->names[i])
            fprintf(out,
                    "\n# Machine %u: %s. It needs the script, its data and the package.\n"
                    "    tail -n 1 runs/mine/address | ssh %s 'umask 077; cat > join'\n"
                    "    ssh %s python -m atoll.join join %s\n",
                    i + 2, a->names[i], a->names[i], a->names[i], given->model);
        else
            fprintf(
                out,
                "\n# Machine %u. Copy the script, its data, and the last line of runs/mine/address as the file join.\n"
                "    python -m atoll.join join %s\n",
                i + 2, given->model);
    }
}
