#include "cli/package_verb.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

enum { PROGRAM_MAX = 64 };

/* Writes the program's name; false if no verb has this name. A slash would make execvp ignore PATH. */
static bool program_of(const char *verb, char out[PROGRAM_MAX])
{
    return verb[0] && verb[0] != '-' && !strchr(verb, '/') &&
           snprintf(out, PROGRAM_MAX, "atoll-%s", verb) < PROGRAM_MAX;
}

bool package_has(const char *verb)
{
    char program[PROGRAM_MAX], path[FILEIO_PATH_MAX];
    const char *folders = getenv("PATH");
    if (!folders || !program_of(verb, program)) return false;
    for (const char *at = folders, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ":");
        int n = snprintf(path, sizeof path, "%.*s/%s", (int)(end - at), at, program);
        if (end > at && n < (int)sizeof path && access(path, X_OK) == 0) return true;
    }
    return false;
}

enum status package_run(const char *verb, char **words, struct err *err)
{
    char program[PROGRAM_MAX];
    if (!program_of(verb, program)) return err_set(err, STATUS_INVALID, "'%.200s' is no verb", verb);
    words[0] = program;
    fflush(NULL);
    /* Ignored signals survive execvp (common/os/std_streams.c ignores these two). */
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    execvp(program, words);
    int error = errno;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    bool missing = error == ENOENT || error == ENOTDIR || error == EACCES; /* EACCES: perhaps of a folder of PATH */
    if (missing && !package_has(verb)) return err_set(err, STATUS_NOTFOUND, "no program %s on PATH", program);
    if (error == ENOENT)
        return err_set(err, STATUS_IO, "cannot start %s: the interpreter that it names is missing: install it again",
                       program);
    return err_set(err, STATUS_IO, "cannot start %s: %s", program, strerror(error));
}

static char **kept_words;

void package_keep_words(int argc, char *const *argv)
{
    kept_words = mem_alloc((size_t)argc + 1, sizeof *kept_words);
    if (kept_words) memcpy(kept_words, argv, (size_t)argc * sizeof *kept_words);
}

enum status package_take(const char *verb, const char *why, struct err *err)
{
    if (!kept_words) return err_set(err, STATUS_NOMEM, "out of memory");
    enum status status = package_run(verb, kept_words, err);
    if (status != STATUS_NOTFOUND) return status;
    return err_set(err, STATUS_INVALID, "%.300s needs the Python package: " PACKAGE_INSTALL, why);
}
