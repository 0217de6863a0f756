#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/races/races.h"

enum { SEEN_MAX = 256 };

static struct {
    bool known;
    const char *left_out, *list; /* from the environment */
    int line;
    struct {
        const char *kernel, *file;
        int line;
    } seen[SEEN_MAX];
    int n_seen;
} barriers;

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Length of the kernel's name without _fp32 or _bf16: both variants have the same barriers. */
static int plain(const char *kernel)
{
    size_t n = strlen(kernel);
    const char *kind = n > 5 ? kernel + n - 5 : kernel;
    return (int)(!strcmp(kind, "_bf16") || !strcmp(kind, "_fp32") ? n - 5 : n);
}

static void add(const char *kernel, const char *file, int line)
{
    for (int i = 0; i < barriers.n_seen; i++)
        if (barriers.seen[i].line == line && barriers.seen[i].kernel == kernel && barriers.seen[i].file == file) return;
    FILE *list = fopen(barriers.list, "a");
    if (!list || barriers.n_seen == SEEN_MAX) {
        fprintf(stderr, "%s: cannot write, or more than 256 barriers\n", barriers.list);
        abort();
    }
    fprintf(list, "%s:%d %.*s\n", base_of(file), line, plain(kernel), kernel);
    (void)fclose(list);
    barriers.seen[barriers.n_seen].kernel = kernel;
    barriers.seen[barriers.n_seen].file = file;
    barriers.seen[barriers.n_seen++].line = line;
}

/* True for the barrier "FILE:LINE KERNEL" in CUDA_BARRIER_LEFT_OUT. */
static bool is_left_out(const char *kernel, const char *file)
{
    char name[256];
    snprintf(name, sizeof name, "%s:%d %.*s", base_of(file), barriers.line, plain(kernel), kernel);
    return strcmp(name, barriers.left_out) == 0;
}

bool barriers_wait(const char *kernel, const char *file, int line)
{
    if (!barriers.known) {
        barriers.known = true;
        barriers.list = getenv("CUDA_BARRIERS_TO");
        barriers.left_out = getenv("CUDA_BARRIER_LEFT_OUT");
        const char *colon = barriers.left_out ? strchr(barriers.left_out, ':') : NULL;
        barriers.line = colon ? atoi(colon + 1) : 0;
    }
    if (barriers.list) add(kernel, file, line);
    return line != barriers.line || !is_left_out(kernel, file);
}
