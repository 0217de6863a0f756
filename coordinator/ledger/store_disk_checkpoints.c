#include "coordinator/ledger/store_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"

static void checkpoint_path(const struct store_disk *d, uint64_t round, const char *file, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/checkpoints%s/round_%06llu%s%s", d->dir, d->next, (unsigned long long)round,
             file[0] ? "/" : "", file);
}

static enum status write_state(const char *path, const struct store_checkpoint *in, struct err *err)
{
    struct file_out out = {.fd = -1};
    enum status status = file_out_open(&out, path, err);
    for (size_t i = 0; status == STATUS_OK && i < in->n_state; i++)
        status = file_out_put(&out, in->state[i].data, in->state[i].size, err);
    if (status == STATUS_OK) status = file_out_commit(&out, err);
    if (status != STATUS_OK) file_out_abort(&out);
    return status;
}

/* --- names that Atoll writes -------------------------------------------------------------------------------------- */

static const char *digits_end(const char *text)
{
    return text + strspn(text, "0123456789");
}

/* "", or the temporary suffix of file_write and hf_folder_write. */
static bool is_tail(const char *text)
{
    static const char tmp[] = ".tmp-";
    if (!*text) return true;
    if (strncmp(text, tmp, sizeof tmp - 1) != 0) return false;
    text += sizeof tmp - 1;
    return *text && !*digits_end(text);
}

static bool begins_with(const char *name, const char *ours)
{
    return !strncmp(name, ours, strlen(ours)) && is_tail(name + strlen(ours));
}

static bool is_our_file(const char *name)
{
    static const char *const names[] = {"coordinator_state.bin", "model.safetensors", "adapter_model.safetensors"};
    bool ours = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ours = ours || begins_with(name, names[i]);
    for (int i = 0; hf_files_name(i); i++) ours = ours || begins_with(name, hf_files_name(i));
    return ours;
}

static bool is_our_folder(const char *name)
{
    static const char round[] = "round_";
    const char *number = name + sizeof round - 1;
    if (strncmp(name, round, sizeof round - 1) != 0) return false;
    const char *end = digits_end(number);
    return end - number >= 6 && is_tail(end);
}

static bool is_dots(const char *name)
{
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Opens a folder; a symbolic link to a folder fails. */
static DIR *folder_open(const char *path)
{
    int fd = descriptors_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !dir) close(fd);
    return dir;
}

static bool holds_only_ours(const char *path)
{
    DIR *dir = folder_open(path);
    bool only = dir != NULL;
    for (const struct dirent *e; only && (e = readdir(dir));) only = is_dots(e->d_name) || is_our_file(e->d_name);
    if (dir) closedir(dir);
    return only;
}

/* Removes the files that Atoll writes, then the folder if it is empty. False with errno: a file or the folder stays. */
static bool folder_remove(const char *path)
{
    DIR *dir = folder_open(path);
    int cause = 0;
    if (!dir) return errno == ENOENT;
    if (unlinkat(dirfd(dir), HF_FILES_CONFIG, 0) && errno != ENOENT) cause = errno; /* first: hf_files.h */
    for (const struct dirent *e; (e = readdir(dir));)
        if (is_our_file(e->d_name) && unlinkat(dirfd(dir), e->d_name, 0)) cause = errno;
    closedir(dir);
    if (!rmdir(path)) return true;
    if (cause) errno = cause;
    return false;
}

/* --- writing and removing ----------------------------------------------------------------------------------------- */

/* Removes the state, durably: a folder without state is not a checkpoint. This must happen before the journal after it
 * is removed. */
static enum status state_remove(struct store_disk *d, uint64_t round, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    if (d->map_round == round) store_disk_unmap(d);
    checkpoint_path(d, round, "coordinator_state.bin", path);
    bool gone = !unlink(path);
    if (!gone && errno != ENOENT && errno != ENOTDIR) return store_disk_fail(err, "remove", path);
    checkpoint_path(d, round, "", path);
    if (gone) TRY(dir_sync(path, err));
    return STATUS_OK;
}

/* *whole_p: the folder is gone; if false, errno is the cause. */
static enum status checkpoint_remove(struct store_disk *d, uint64_t round, bool *whole_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    TRY(state_remove(d, round, err));
    checkpoint_path(d, round, "", path);
    *whole_p = folder_remove(path);
    return STATUS_OK;
}

enum status store_disk_checkpoint_remove(struct store *s, uint64_t round, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    bool whole = false;
    checkpoint_path(d, round, "", path);
    TRY(checkpoint_remove(d, round, &whole, err));
    if (whole || d->warned) return STATUS_OK;
    d->warned = true;
    log_warn("cannot remove all files of the old checkpoint %.300s (logged once): %s", path, strerror(errno));
    return STATUS_OK;
}

static void kept_path(const struct store_disk *d, uint64_t round, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/checkpoints/before_jump_%06llu", d->dir, (unsigned long long)round);
}

/* Renames first: after a crash between the two steps the next start finds a folder without a checkpoint's name. */
enum status store_disk_checkpoint_keep(struct store *s, uint64_t round, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX], kept[FILEIO_PATH_MAX], state[FILEIO_PATH_MAX + 32];
    if (d->map_round == round) store_disk_unmap(d);
    checkpoint_path(d, round, "", path);
    kept_path(d, round, kept);
    TRY(store_disk_make_way(kept, err)); /* of an earlier jump at this round */
    if (rename(path, kept)) return store_disk_fail(err, "rename", path);
    snprintf(state, sizeof state, "%s/coordinator_state.bin", kept);
    if (unlink(state) && errno != ENOENT) return store_disk_fail(err, "remove", state);
    snprintf(path, sizeof path, "%s/checkpoints", d->dir);
    return dir_sync(path, err);
}

enum status store_disk_checkpoint_keep_end(struct store *s, uint64_t round, struct err *err)
{
    char kept[FILEIO_PATH_MAX];
    kept_path(store_disk_of(s), round, kept);
    return folder_remove(kept) ? STATUS_OK : store_disk_fail(err, "remove", kept);
}

/* Makes `latest` a link to the checkpoint, or a text file with its name if the file system has no links. Writes only if
 * the name changes. */
static enum status name_latest(const struct store_disk *d, uint64_t round, struct err *err)
{
    char path[FILEIO_PATH_MAX], name[64];
    char now[sizeof name];
    struct stat st;
    snprintf(path, sizeof path, "%s/checkpoints%s/latest", d->dir, d->next);
    snprintf(name, sizeof name, "round_%06llu", (unsigned long long)round);
    bool there = !lstat(path, &st);
    ssize_t n = there && S_ISLNK(st.st_mode) ? readlink(path, now, sizeof now) : -1;
    if (n == (ssize_t)strlen(name) && !memcmp(now, name, (size_t)n)) return STATUS_OK;
    if (there && S_ISDIR(st.st_mode)) TRY(store_disk_make_way(path, err));
    struct err why = {0};
    enum status status = file_link(path, name, &why);
    if (status == STATUS_UNSUPPORTED) return file_write(path, name, strlen(name), err);
    return status == STATUS_OK ? status : err_set(err, status, "%s", why.msg);
}

enum status store_disk_checkpoint_write(struct store *s, const struct store_checkpoint *in, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX], files[FILEIO_PATH_MAX];
    bool whole = false;
    TRY(checkpoint_remove(d, in->round, &whole, err));
    checkpoint_path(d, in->round, "", path);
    TRY(store_disk_make_way(path, err)); /* foreign files that checkpoint_remove left */
    store_disk_files_path(d, files);
    enum status status = hf_folder_write(path, in->layout, in->theta, in->config_json, files, err);
    if (status == STATUS_OK) {
        checkpoint_path(d, in->round, "coordinator_state.bin", path);
        status = write_state(path, in, err);
    }
    if (status != STATUS_OK) {
        if (store_disk_checkpoint_remove(s, in->round, NULL) != STATUS_OK) { /* report the first error only */
        }
        return status;
    }
    return name_latest(d, in->round, err);
}

enum status store_disk_checkpoint_list(struct store *s, uint64_t *out, size_t cap, size_t *n_p, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    size_t n, kept = 0;
    snprintf(path, sizeof path, "%s/checkpoints%s", d->dir, d->next);
    TRY(store_disk_list_numbers(path, "round_", "", out, cap, &n, err));
    for (size_t i = 0; i < n; i++) {
        checkpoint_path(d, out[i], "coordinator_state.bin", path);
        if (file_exists(path)) out[kept++] = out[i];
    }
    *n_p = kept;
    return STATUS_OK;
}

enum status store_disk_checkpoint_state_size(struct store *s, uint64_t round, uint64_t *size_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct stat st;
    checkpoint_path(store_disk_of(s), round, "coordinator_state.bin", path);
    if (stat(path, &st)) return store_disk_fail_read(err, "examine", path);
    *size_p = (uint64_t)st.st_size;
    return STATUS_OK;
}

enum status store_disk_checkpoint_state_read(struct store *s, uint64_t round, uint64_t offset, void *dst, size_t size,
                                             struct err *err)
{
    char path[FILEIO_PATH_MAX];
    checkpoint_path(store_disk_of(s), round, "coordinator_state.bin", path);
    int fd;
    TRY(file_open_plain(path, O_RDONLY, 0, &fd, err));
    enum status status = store_disk_read_exact(fd, offset, dst, size, path, err);
    close(fd);
    return status;
}

/* Copies the part of [first, first + count) that lies in one tensor. */
static enum status copy_tensor(const struct safetensors *st, const struct tensor *t, uint64_t first, float *dst,
                               uint64_t count, struct err *err)
{
    uint64_t from = t->offset > first ? t->offset : first;
    uint64_t to = t->offset + t->count < first + count ? t->offset + t->count : first + count;
    if (from >= to) return STATUS_OK;
    const struct safetensors_entry *e = safetensors_find(st, t->name);
    if (!e || strcmp(e->dtype, "F32") != 0 || e->count != t->count)
        return err_set(err, STATUS_CORRUPT, "tensor '%s' is missing in the checkpoint or has another shape", t->name);
    memcpy(dst + (from - first), e->data + (from - t->offset) * sizeof *dst, (to - from) * sizeof *dst);
    return STATUS_OK;
}

enum status store_disk_checkpoint_theta_read(struct store *s, uint64_t round, const struct layout *layout,
                                             uint64_t first, float *dst, uint64_t count, struct err *err)
{
    struct store_disk *d = store_disk_of(s);
    char path[FILEIO_PATH_MAX];
    if (!d->mapped || d->map_round != round) {
        store_disk_unmap(d);
        checkpoint_path(d, round, "model.safetensors", path);
        TRY(safetensors_open(&d->map, path, err));
        d->mapped = true;
        d->map_round = round;
    }
    if (first > layout->n_params || count > layout->n_params - first)
        return err_set(err, STATUS_CORRUPT, "read past the end of a checkpoint");
    for (uint32_t i = 0; i < layout->n_tensors; i++)
        TRY(copy_tensor(&d->map, &layout->tensors[i], first, dst, count, err));
    return STATUS_OK;
}

enum status store_disk_name_latest(struct store_disk *d, struct err *err)
{
    uint64_t *rounds;
    size_t n;
    TRY(store_list(&d->base, d->base.ops->checkpoint_list, &rounds, &n, err));
    enum status status = n ? name_latest(d, rounds[n - 1], err) : STATUS_OK;
    mem_free(rounds);
    return status;
}

enum status store_disk_sweep(struct store_disk *d, struct err *err)
{
    uint64_t *segments;
    size_t n;
    char path[FILEIO_PATH_MAX], sub[FILEIO_PATH_MAX];
    TRY(store_list(&d->base, d->base.ops->segment_list, &segments, &n, err));
    mem_free(segments);
    if (!n) return STATUS_OK; /* the folder has no run yet, so all files are foreign */
    snprintf(path, sizeof path, "%s/checkpoints", d->dir);
    DIR *dir = descriptors_opendir(path);
    if (!dir) return store_disk_fail(err, "list", path);
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!is_our_folder(e->d_name)) continue;
        if (snprintf(sub, sizeof sub, "%s/%s/coordinator_state.bin", path, e->d_name) >= (int)sizeof sub) continue;
        bool whole = file_exists(sub) && !strstr(e->d_name, ".tmp");
        sub[strlen(sub) - strlen("/coordinator_state.bin")] = 0;
        if (!whole && holds_only_ours(sub) && !folder_remove(sub))
            log_warn("cannot remove the incomplete checkpoint %.300s: %s", sub, strerror(errno));
    }
    closedir(dir);
    return store_disk_name_latest(d, err); /* the user may have removed the checkpoint that it names */
}
