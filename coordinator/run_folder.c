#include "coordinator/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_folder.h"
#include "coordinator/ledger/checkpoint_folder.h"
#include "coordinator/ledger/store_disk.h"

enum { LINE_FILE_MAX = 65536, METRICS_TAIL_MAX = 4 << 20 };

enum status run_folder_path(char *out, size_t cap, const char *dir, const char *name, struct err *err)
{
    if (snprintf(out, cap, "%s/%s", dir, name) >= (int)cap)
        return err_set(err, STATUS_LIMIT, "the path %s/%s is too long", dir, name);
    return STATUS_OK;
}

bool run_folder_has(const char *dir, const char *name)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, dir, name, NULL) == STATUS_OK && file_exists(path);
}

bool run_folder_locked(const char *dir, const char *lock)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, dir, lock, NULL) == STATUS_OK && file_is_locked(path);
}

enum status run_folder_read_line(const char *path, char *out, size_t cap, struct err *err)
{
    void *data;
    size_t size;
    TRY(file_read(path, LINE_FILE_MAX, &data, &size, err));
    size_t length = strcspn(data, "\r\n");
    bool fits = length < cap;
    if (fits && length) memcpy(out, data, length), out[length] = '\0';
    mem_free(data);
    if (!fits) return err_set(err, STATUS_LIMIT, "the first line of %s is too long", path);
    return length ? STATUS_OK : err_set(err, STATUS_NOTFOUND, "%s is empty", path);
}

enum status run_folder_name(char *out, size_t cap, const char *path, struct err *err)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= cap) return err_set(err, STATUS_LIMIT, "the path %s is too long", path);
    memcpy(out, path, n);
    out[n] = '\0';
    return STATUS_OK;
}

/* Replaces a link to a folder beside it by its target: `latest` may name another checkpoint a moment later. */
static void follow_latest(char *path, size_t cap)
{
    char target[256];
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0 || memchr(target, '/', (size_t)n) || (size_t)(name - path) + (size_t)n >= cap) return;
    memcpy(name, target, (size_t)n);
    name[n] = '\0';
}

enum status run_folder_checkpoint(const char *path, char *out, size_t cap, struct err *err)
{
    char folder[FILEIO_PATH_MAX], probe[FILEIO_PATH_MAX], checkpoints[FILEIO_PATH_MAX], name[256];
    struct stat st;
    if (stat(path, &st) && errno == ENOENT)
        return err_set(err, STATUS_NOTFOUND, "%s does not exist: give a run or checkpoint folder", path);
    if (stat(path, &st)) return err_set(err, STATUS_IO, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(err, STATUS_NOTFOUND, "%s is a file: give a run or checkpoint folder", path);
    TRY(run_folder_name(folder, sizeof folder, path, err));
    follow_latest(folder, sizeof folder);
    if (run_folder_has(folder, "config.json") ||
        run_folder_has(folder, "model.safetensors")) /* an adapter: no config */
        return run_folder_name(out, cap, folder, err);
    TRY(run_folder_path(probe, sizeof probe, folder, "latest", err));
    if (!lstat(probe, &st))
        return err_set(err, STATUS_NOTFOUND, "%s holds all checkpoints of a run: give one of them, or the run folder",
                       folder);
    TRY(run_folder_path(checkpoints, sizeof checkpoints, folder, "checkpoints", err));
    enum status status = hf_folder_latest(folder, name, sizeof name, err);
    if (status == STATUS_NOTFOUND)
        return err_set(
            err, STATUS_NOTFOUND,
            "%s has neither config.json nor checkpoints/latest: wait for the first checkpoint, or give another folder",
            folder);
    if (status != STATUS_OK) return status;
    TRY(run_folder_path(out, cap, checkpoints, name, err));
    if (file_exists(out)) return STATUS_OK;
    return err_set(err, STATUS_NOTFOUND, "%s/latest names %s, which does not exist: give a checkpoint folder",
                   checkpoints, name);
}

enum status run_folder_check(const char *folder, bool *recorded_p, const char **what_p, struct err *err)
{
    char why[360];
    enum status status = checkpoint_folder_check(folder, recorded_p, err);
    if (status == STATUS_CORRUPT) {
        snprintf(why, sizeof why, "%.350s", err->msg);
        return err_set(
            err, STATUS_CORRUPT,
            "%s: give another checkpoint, or restore it from a copy (without coordinator_state.bin, the model "
            "is read unchecked)",
            why);
    }
    *what_p = *recorded_p ? "checked all hashes that the coordinator recorded"
                          : "no coordinator_state.bin: checked names, shapes, sizes and finite values, not the content";
    return status;
}

/* The parts of RUN/checkpoints/round_000020. False: another path. */
static bool split_checkpoint(const char *folder, char run[FILEIO_PATH_MAX], json_int_t *round_p)
{
    static const char middle[] = "checkpoints/round_";
    const char *at = strstr(folder, middle), *next;
    while (at && (next = strstr(at + 1, middle))) at = next;
    if (!at || (at > folder && at[-1] != '/') || at - folder >= FILEIO_PATH_MAX) return false;
    char *end;
    *round_p = strtoll(at + sizeof middle - 1, &end, 10);
    snprintf(run, FILEIO_PATH_MAX, "%.*s", at > folder + 1 ? (int)(at - folder) - 1 : 1, at > folder ? folder : ".");
    return end > at + sizeof middle - 1 && !*end;
}

const char *run_folder_age(const char *folder, char *out, size_t cap)
{
    char run[FILEIO_PATH_MAX];
    json_int_t round, at = 0, of = 0;
    out[0] = '\0';
    if (!split_checkpoint(folder, run, &round)) return out;
    json_t *event = run_folder_last_event(run, "round");
    bool known = !json_unpack(event, "{s:I, s:I}", "round", &at, "rounds", &of);
    json_decref(event);
    const char *state = round ? "" : " (untrained)";
    if (!known || at <= round)
        snprintf(out, cap, "round %lld of %s%s", (long long)round, run, state);
    else
        snprintf(out, cap, "round %lld of %s%s, which is at round %lld of %lld: newer rounds are not in it",
                 (long long)round, run, state, (long long)at, (long long)of);
    return out;
}

/* Reads the end of a file, at most `cap` bytes. The caller owns *text_p (mem_free). */
static enum status read_tail(const char *path, size_t cap, char **text_p, size_t *size_p)
{
    struct stat st;
    int fd;
    char *text = NULL;
    TRY(file_open_plain(path, O_RDONLY, 0, &fd, NULL));
    enum status status = fstat(fd, &st) ? STATUS_IO : STATUS_OK;
    size_t size = status != STATUS_OK ? 0 : (uint64_t)st.st_size < cap ? (size_t)st.st_size : cap;
    if (status == STATUS_OK && !(text = mem_alloc(1, size + 1))) status = STATUS_NOMEM;
    if (status == STATUS_OK) status = store_disk_read_exact(fd, (uint64_t)st.st_size - size, text, size, path, NULL);
    close(fd);
    if (status != STATUS_OK) mem_free(text);
    *text_p = text;
    *size_p = size;
    return status;
}

json_t *run_folder_last_event(const char *run, const char *kind)
{
    char path[FILEIO_PATH_MAX], mark[64], *text;
    size_t size;
    json_t *event = NULL;
    int mark_size = snprintf(mark, sizeof mark, "\"event\":\"%s\"", kind);
    if (run_folder_path(path, sizeof path, run, "metrics.jsonl", NULL) != STATUS_OK) return NULL;
    if (read_tail(path, METRICS_TAIL_MAX, &text, &size) != STATUS_OK) return NULL;
    for (const char *end = text + size; end > text && !event;) {
        const char *before = memrchr(text, '\n', (size_t)(end - text - 1)), *line = before ? before + 1 : text;
        if (memmem(line, (size_t)(end - line), mark, (size_t)mark_size))
            event = json_loadb(line, (size_t)(end - line), 0, NULL);
        end = line;
    }
    mem_free(text);
    return event;
}

bool run_folder_empty(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) return true;
    bool empty = true;
    for (struct dirent *entry; empty && (entry = readdir(dir));)
        empty = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
    closedir(dir);
    return empty;
}
