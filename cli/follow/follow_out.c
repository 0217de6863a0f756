#include "cli/follow/follow_out.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/tensor/hf_folder.h"

enum { LABEL_MAX = 1 << 16 };

static const char infix[] = ".round_";

/* --- atoll.json --------------------------------------------------------------------------------------------------- */

static enum status label_write(const struct follow_label *label, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX], hash[2 * sizeof label->theta_hash + 1];
    json_t *versions = json_array();
    for (uint32_t i = 0; i < label->n_fragments; i++)
        json_array_append_new(versions, json_integer((json_int_t)label->versions[i]));
    snprintf(hash, sizeof hash, "%016" PRIx64, label->theta_hash);
    json_t *root = json_pack("{s:s, s:s, s:I, s:o, s:s}", "run", label->run, "run_id", label->run_id, "round",
                             (json_int_t)label->round, "versions", versions, "theta_hash", hash);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for " FOLLOW_FILE);
    snprintf(path, sizeof path, "%s/" FOLLOW_FILE, folder);
    enum status status = file_write(path, text, strlen(text), err);
    free(text);
    return status;
}

static bool label_parse(struct follow_label *label, const json_t *root)
{
    const char *run, *id, *hash;
    json_int_t round;
    json_t *versions;
    char *end;
    if (json_unpack((json_t *)(uintptr_t)root, "{s:s, s:s, s:I, s:o, s:s}", "run", &run, "run_id", &id, "round", &round,
                    "versions", &versions, "theta_hash", &hash))
        return false;
    size_t n = json_array_size(versions);
    if (strlen(run) >= sizeof label->run || strlen(id) >= sizeof label->run_id || round < 0 || !n ||
        n > LAYOUT_FRAGMENTS_MAX)
        return false;
    *label = (struct follow_label){.round = (uint64_t)round, .n_fragments = (uint32_t)n};
    snprintf(label->run, sizeof label->run, "%s", run);
    snprintf(label->run_id, sizeof label->run_id, "%s", id);
    label->theta_hash = strtoull(hash, &end, 16);
    for (uint32_t i = 0; i < n; i++) {
        json_t *value = json_array_get(versions, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
        label->versions[i] = (uint64_t)json_integer_value(value);
    }
    return end == hash + 16 && !*end;
}

/* False: the folder has no atoll.json that this program wrote. */
static bool label_read(struct follow_label *label, const char *folder)
{
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    if (snprintf(path, sizeof path, "%s/" FOLLOW_FILE, folder) >= (int)sizeof path) return false;
    if (file_read(path, LABEL_MAX, &text, &size, NULL) != STATUS_OK) return false;
    json_t *root = json_loadb(text, size, 0, NULL);
    bool good = label_parse(label, root);
    json_decref(root);
    mem_free(text);
    return good;
}

/* --- OUT ---------------------------------------------------------------------------------------------------------- */

enum status follow_out_open(struct follow_out *out, const char *path, struct err *err)
{
    struct stat st;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= sizeof out->path) return err_set(err, STATUS_LIMIT, "the path %.200s is too long", path);
    *out = (struct follow_out){.written = false};
    memcpy(out->path, path, n);
    if (lstat(out->path, &st)) {
        if (errno == ENOENT) return STATUS_OK;
        return err_set(err, STATUS_IO, "cannot examine %.300s: %s", out->path, strerror(errno));
    }
    out->written = S_ISLNK(st.st_mode) && label_read(&out->label, out->path);
    if (out->written) return STATUS_OK;
    return err_set(err, STATUS_EXISTS, "%.300s exists, and atoll follow did not make it: choose a new name", out->path);
}

enum status follow_out_check(const struct follow_out *out, const char *run_id, struct err *err)
{
    if (!out->written || !strcmp(out->label.run_id, run_id)) return STATUS_OK;
    return err_set(err, STATUS_EXISTS,
                   "%.200s holds a model of another run, %.60s (round %" PRIu64 "): choose a new name", out->path,
                   out->label.run, out->label.round);
}

struct filling {
    const struct follow_label *label;
    const struct follow_content *content;
};

static enum status fill(void *ctx, const char *folder, struct err *err)
{
    const struct filling *f = ctx;
    const struct follow_content *c = f->content;
    TRY(hf_folder_fill(folder, c->layout, c->theta, c->config_json, c->files, err));
    return label_write(f->label, folder, err);
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Writes OUT's folder, with its last slash, to parent[cap]; "./" without one. */
static void parent_of(const char *path, char *parent, size_t cap)
{
    int n = (int)(base_of(path) - path);
    snprintf(parent, cap, "%.*s", n ? n : 2, n ? path : "./");
}

/* "OUT.round_000040" */
static bool is_folder_of(const char *name, const char *base)
{
    size_t n = strlen(base), prefix = n + sizeof infix - 1;
    if (strncmp(name, base, n) != 0 || strncmp(name + n, infix, sizeof infix - 1) != 0 || !name[prefix]) return false;
    for (const char *c = name + prefix; *c; c++)
        if (!isdigit((unsigned char)*c)) return false;
    return true;
}

/* Removes the folders of this run beside OUT, except the two named ones. A failure costs only disk space. */
static void remove_older(const struct follow_out *out, const char *newest, const char *previous)
{
    char parent[FILEIO_PATH_MAX], path[2 * FILEIO_PATH_MAX];
    static struct follow_label label; /* large */
    parent_of(out->path, parent, sizeof parent);
    DIR *dir = opendir(parent);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (!is_folder_of(name, base_of(out->path)) || !strcmp(name, newest) || !strcmp(name, previous)) continue;
        snprintf(path, sizeof path, "%s%s", parent, name);
        if (!label_read(&label, path) || strcmp(label.run_id, out->label.run_id) != 0) continue;
        if (dir_remove_flat(path, NULL) != STATUS_OK) continue;
    }
    if (dir) closedir(dir);
}

static bool is_of_run(struct follow_label *there, const char *folder, const struct follow_label *label)
{
    return label_read(there, folder) && !strcmp(there->run_id, label->run_id);
}

enum status follow_out_write(struct follow_out *out, const struct follow_label *label,
                             const struct follow_content *content, struct err *err)
{
    char folder[FILEIO_PATH_MAX], before[FILEIO_PATH_MAX] = "";
    static struct follow_label there; /* large */
    struct filling filling = {label, content};
    ssize_t n = readlink(out->path, before, sizeof before - 1);
    before[n > 0 ? n : 0] = '\0';
    snprintf(folder, sizeof folder, "%s%s%06" PRIu64, out->path, infix, label->round);
    bool mine = is_of_run(&there, folder, label);
    if (mine && there.theta_hash != label->theta_hash && !strcmp(base_of(folder), before)) {
        /* The run was taken back. OUT links to this folder until the new one is whole, so that needs another name. */
        snprintf(folder, sizeof folder, "%s%s%07" PRIu64, out->path, infix, label->round);
        mine = is_of_run(&there, folder, label);
    }
    if (file_exists(folder) && !mine)
        return err_set(err, STATUS_EXISTS, "%.300s exists, and atoll follow did not make it: remove it", folder);
    if (!mine || there.theta_hash != label->theta_hash) TRY(hf_folder_make(folder, fill, &filling, err));
    TRY(file_link(out->path, base_of(folder), err));
    out->label = *label;
    out->written = true;
    remove_older(out, base_of(folder), before);
    return STATUS_OK;
}
