/* The images of tests/lib/store/powercut.h. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/store/powercut.h"
#include "tests/lib/store/powercut_impl.h"

enum { BLOCK = 512 };

static const struct powercut_disk *const d = &powercut_disk;

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
    x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44du;
    return x ^ (x >> 33);
}

struct image {
    size_t end; /* number of changes before the power cut */
    uint64_t draw, seed;
};

/* Copies the content of a file to all of its names. */
static void begin_node(struct image *im, int node)
{
    im->seed = mixed(im->draw * 1000003 + im->end * 8191 + (size_t)node);
}

/* Draws the next number below n. */
static size_t some(struct image *im, size_t n)
{
    im->seed = mixed(im->seed + 0x9e3779b97f4a7c15u);
    return (size_t)(im->seed % n);
}

/* Returns the last safe change of a node: its last fsync. 0, a change of the root, if there is none. */
static size_t safe_until(const struct image *im, int node)
{
    size_t safe = 0;
    for (size_t i = 0; i < im->end; i++)
        if (d->changes[i].node == node && d->changes[i].what == SYNC) safe = i;
    return safe;
}

struct content {
    uint8_t *bytes;
    size_t n;
};

static void apply_bytes(struct content *c, const struct powercut_change *change)
{
    size_t n = c->n;
    if (change->what == LENGTH) n = change->n;
    if (change->what == WRITE && change->at + change->n > n) n = change->at + change->n;
    c->bytes = powercut_grown(c->bytes, n + 1, 1);
    if (n > c->n) memset(c->bytes + c->n, 0, n - c->n);
    c->n = n;
    if (change->what == WRITE) memcpy(c->bytes + change->at, change->data, change->n);
}

/* Mixes the old and the new content block by block. */
static void mix(struct image *im, struct content *now, const struct content *old, const size_t *lengths, size_t n)
{
    size_t end = lengths[some(im, n)];
    now->bytes = powercut_grown(now->bytes, (now->n > end ? now->n : end) + 1, 1);
    if (end > now->n) memset(now->bytes + now->n, 0, end - now->n);
    now->n = end;
    for (size_t at = 0; at < end; at += BLOCK) {
        if (some(im, 2)) continue;
        for (size_t i = at; i < at + BLOCK && i < end; i++) now->bytes[i] = i < old->n ? old->bytes[i] : 0;
    }
}

static void lay_file(struct image *im, int node, const char *path)
{
    begin_node(im, node);
    struct content old = {0}, now = {0};
    size_t safe = safe_until(im, node), n_lengths = 0, *lengths = NULL;
    for (size_t i = 0; i < im->end; i++) {
        const struct powercut_change *c = &d->changes[i];
        if (c->node != node) continue;
        if (i <= safe) apply_bytes(&old, c);
        apply_bytes(&now, c);
        if (i < safe) continue;
        lengths = powercut_grown(lengths, n_lengths + 1, sizeof *lengths);
        lengths[n_lengths++] = now.n;
    }
    if (im->draw == POWERCUT_NOTHING || im->draw == POWERCUT_NAMES) {
        struct content none = now;
        now = old;
        old = none;
    } else if (im->draw == POWERCUT_LENGTHS) {
        for (size_t i = 0; i < now.n; i++) now.bytes[i] = i < old.n ? old.bytes[i] : 0;
    } else if (im->draw >= POWERCUT_RANDOM && n_lengths) {
        mix(im, &now, &old, lengths, n_lengths);
    }
    int fd = __real_open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0 || (now.n && __real_write(fd, now.bytes, now.n) != (ssize_t)now.n))
        powercut_broken("cannot be written", path);
    __real_close(fd);
    free(old.bytes);
    free(now.bytes);
    free(lengths);
}

static void lay_folder(struct image *im, int node, const char *path)
{
    struct powercut_names names = {0};
    size_t safe = safe_until(im, node), later = 0;
    for (size_t i = safe + 1; i < im->end; i++) later += d->changes[i].node == node;
    begin_node(im, node);
    bool none = im->draw == POWERCUT_NOTHING || im->draw == POWERCUT_BYTES;
    size_t kept = none ? 0 : im->draw < POWERCUT_RANDOM ? later : some(im, later + 1);
    for (size_t i = 0; i < im->end; i++) {
        if (d->changes[i].node != node) continue;
        if (i > safe && !kept--) break;
        powercut_apply(&names, &d->changes[i]);
    }
    if (__real_mkdir(path, 0777)) powercut_broken("cannot be made", path);
    for (size_t i = 0; i < names.n; i++) {
        char at[PATH_MAX];
        if (snprintf(at, sizeof at, "%s/%s", path, names.list[i].name) >= (int)sizeof at)
            powercut_broken("path too long", path);
        if (d->is_folder[names.list[i].node])
            lay_folder(im, names.list[i].node, at);
        else if (d->targets[names.list[i].node]) {
            if (symlink(d->targets[names.list[i].node], at)) powercut_broken("cannot be linked", at);
        } else
            lay_file(im, names.list[i].node, at);
    }
    free(names.list);
}

void powercut_image(size_t instant, uint64_t draw, const char *to)
{
    struct image im = {.end = d->first + instant, .draw = draw};
    if (im.end > d->n_changes) powercut_broken("later than anything that was recorded", to);
    lay_folder(&im, POWERCUT_ROOT, to);
}
