#include "wire/join_target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "wire/transport.h"

static enum status use_line(struct join_target *t, const char *line, struct err *err)
{
    struct transport_address address;
    if (strlen(line) >= sizeof t->line) return err_set(err, STATUS_INVALID, "this is too long for a join line");
    TRY(transport_address_parse(&address, line, err));
    memcpy(t->line, line, strlen(line) + 1);
    return STATUS_OK;
}

/* Reads the first line of an open file and closes it. */
static enum status use_file(struct join_target *t, FILE *f, const char *name, struct err *err)
{
    char line[JOIN_LINE_MAX + 2] = "";
    bool got = fgets(line, sizeof line, f) != NULL, failed = ferror(f);
    int cause = errno;
    fclose(f);
    if (failed) return err_set(err, STATUS_IO, "cannot read %s: %s", name, strerror(cause));
    line[strcspn(line, "\r\n")] = 0;
    enum status status =
        got && !strncmp(line, "tcp://", 6)
            ? use_line(t, line, err)
            : err_set(err, STATUS_INVALID, "the first line is no join line, tcp://HOST:PORT/SERVERKEY/SECRET");
    if (status != STATUS_OK) err_prefix(err, "%s", name);
    return status;
}

static enum status use_path(struct join_target *t, const char *path, const struct stat *st, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, STATUS_IO, "cannot open %s: %s", path, strerror(errno));
    TRY(use_file(t, f, path, err));
    /* A file of another user that this process reads as its group was shared so: a Secret of Kubernetes. */
    mode_t others = st->st_uid == geteuid() ? S_IRGRP | S_IROTH : S_IROTH;
    if (S_ISREG(st->st_mode) && st->st_mode & others)
        log_warn("other users can read the join line in %s (mode %04o): set its mode to 0600", path,
                 st->st_mode & 07777u);
    return STATUS_OK;
}

/* Returns true for a missing path that its writer meant as a join line: "tcp:", "tcp;", a scheme, HOST:PORT at the
 * start, or two keys. */
static bool resembles_line(const char *text)
{
    const char *end = text + strcspn(text, "/"), *colon = memrchr(text, ':', (size_t)(end - text));
    if (!strncasecmp(text, "tcp:", 4) || !strncasecmp(text, "tcp;", 4) || strstr(text, "://")) return true;
    if (colon && colon + 1 < end && colon + 1 + strspn(colon + 1, "0123456789") == end) return true;
    const char *first = text + transport_address_shown_length(text), *second = *first ? strchr(first + 1, '/') : NULL;
    return second && second[transport_address_shown_length(second)];
}

static void hide_keys(char *line)
{
    for (line += transport_address_shown_length(line); *line; line++)
        if (*line != '/') *line = 'x';
}

static enum status find(struct join_target *t, char *given, bool argument, struct err *err)
{
    struct stat st;
    if (!strcmp(given, "-")) {
        FILE *f = fdopen(dup(STDIN_FILENO), "r");
        return f ? use_file(t, f, "standard input", err) : err_set(err, STATUS_IO, "cannot read standard input");
    }
    if (!strncmp(given, "tcp://", 6)) {
        TRY(use_line(t, given, err));
        const char *keys = given + transport_address_shown_length(given);
        if (argument && *keys && strchr(keys + 1, '/')) /* not for the coordinator's public key alone */
            log_warn("the join line stood in the list of processes, where other users can read its secret: give it in "
                     "ATOLL_JOIN, in a file, or - for standard input");
        hide_keys(given);
        return STATUS_OK;
    }
    bool there = !stat(given, &st);
    if (there && !S_ISDIR(st.st_mode)) return use_path(t, given, &st, err);
    if (!*given || (!there && resembles_line(given)))
        return err_set(err, STATUS_INVALID, "%.*s is a mistyped join line: write tcp://HOST:PORT/SERVERKEY/SECRET",
                       transport_address_shown_length(given), given);
    if (strlen(given) >= sizeof t->run_dir) return err_set(err, STATUS_INVALID, "this is too long for a path");
    memcpy(t->run_dir, given, strlen(given) + 1);
    return STATUS_OK;
}

enum status join_target_find(struct join_target *target, const char *given, struct err *err)
{
    char copy[JOIN_LINE_MAX + CONFIG_PATH_MAX];
    const char *from_env = given ? NULL : getenv(JOIN_ENV), *text = given ? given : from_env;
    *target = (struct join_target){0};
    if (!given && (!text || !*text)) return STATUS_NOTFOUND;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        return err_set(err, STATUS_INVALID, "this is too long for a join line");
    enum status status = find(target, copy, false, err);
    if (status != STATUS_OK && from_env) err_prefix(err, JOIN_ENV);
    explicit_bzero(copy, sizeof copy);
    return status;
}

enum status join_target_read(struct join_target *target, char *given, struct err *err)
{
    char *from_env = getenv(JOIN_ENV);
    *target = (struct join_target){0};
    enum status status = STATUS_NOTFOUND;
    if (given)
        status = find(target, given, true, err);
    else if (from_env && *from_env && (status = find(target, from_env, false, err)) != STATUS_OK)
        err_prefix(err, JOIN_ENV);
    unsetenv(JOIN_ENV);
    return status;
}
