/* Tests that the real cuDNN compiles the attention graphs for GPUs that are not present. It uses descriptions of the
 * GPUs (tests/cuda/stubs/properties, written by hand from data sheets) and a stub of the driver (driver_stub.c). Every
 * shape needs an engine whose workspace is below the limit of a plan. test_cuda_attn_graph tests the results of the
 * graphs; their execution needs a GPU.
 *
 * Usage: test_cudnn_graphs FOLDER [all]; exits with 77 without cuDNN. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cudnn/cuda_cudnn_plan.h"

#define WORKSPACE_MAX ((size_t)1 << 30)

static const int archs[] = {80, 86, 89, 90, 100, 120};
static const size_t head_dims[] = {64, 80, 96, 128};
static int failed, compiled;

enum direction { FORWARD, BACKWARD, BACKWARD_EXACT };

static const char *const directions[] = {"forward", "backward", "backward exact"};

static void graph_of(struct attn_graph *graph, struct attn_graph_shape shape, enum direction direction)
{
    shape.type = ATTN_BF16;
    shape.exact = direction == BACKWARD_EXACT;
    if (direction == FORWARD)
        attn_graph_forward(graph, &shape);
    else
        attn_graph_backward(graph, &shape);
}

/* Aligned pointers are accepted; the execution then fails with an error, because there is no device. */
static bool accepts_pointers(struct cudnn_plan *plan, struct err *err)
{
    void *memory[ATTN_ROLES];
    for (size_t i = 0; i < ATTN_ROLES; i++) memory[i] = (void *)(4096 * (i + 1));
    for (int twice = 0; twice < 2; twice++)
        if (cudnn_plan_prepare(plan, memory, memory[0], err) != STATUS_OK) return false;
    return cudnn_plan_execute(plan, memory, memory[0], err) == STATUS_UNSUPPORTED ||
           err_set(err, STATUS_STATE, "executed without a device") == STATUS_OK;
}

static void check(const struct cudnn_lib *lib, const struct cudnn_target *target, int arch,
                  const struct attn_graph_shape *s, enum direction direction)
{
    struct attn_graph graph;
    struct attn_graph_shape shape = *s;
    struct cudnn_plan *plan = NULL;
    struct cudnn_plan_facts facts = {0};
    struct err err = {0};
    graph_of(&graph, *s, direction);
    enum status status =
        cudnn_plan_create(lib, target, &graph, WORKSPACE_MAX, direction == BACKWARD_EXACT, &plan, &err);
    bool good = status == STATUS_OK && accepts_pointers(plan, &err);
    if (status == STATUS_OK) facts = cudnn_plan_facts(plan);
    shape.exact = direction == BACKWARD_EXACT;
    shape.capability = arch;
    bool known = lib->number / 100 >= 908 && lib->number / 100 <= 928; /* 9.8 to 9.28 behave alike */
    size_t planned = attn_graph_workspace(&shape), more = arch == 90 ? 0 : 256;
    if (good && direction != FORWARD && known && (facts.workspace > planned || facts.workspace + more < planned))
        good = err_set(&err, STATUS_STATE, "workspace of %zu, planned is %zu", facts.workspace, planned) == STATUS_OK;
    printf("sm_%-3d B%zu H%-2zu G%-2zu T%-4zu hd%-3zu %-14s ", arch, s->batch, s->heads, s->kv_heads, s->seq,
           s->head_dim, directions[direction]);
    if (good)
        printf("engine %d of %d, workspace %zu\n", facts.chosen + 1, facts.engines, facts.workspace);
    else
        printf("FAILED: %s\n", err.msg);
    compiled += good;
    failed += !good;
    cudnn_plan_free(plan);
}

/* Inconsistent graphs, too large workspaces and heads of 7 columns are refused in one line. For the latter, cuDNN 9.19
 * reports several lines. Other errors, such as unsupported strides, crash cuDNN, so they are not tested. */
static void check_refusals(const struct cudnn_lib *lib, const struct cudnn_target *target)
{
    for (int bug = 0; bug < 3; bug++) {
        struct attn_graph_shape shape = {.batch = 2, .heads = 4, .kv_heads = 4, .seq = 256, .head_dim = 64};
        struct attn_graph graph;
        struct cudnn_plan *plan = NULL;
        struct err err = {0};
        if (bug == 2) shape.head_dim = 7;
        graph_of(&graph, shape, bug ? BACKWARD : FORWARD);
        if (!bug) graph.ops[0].b = 2; /* values that are not transposed in place of keys */
        enum status status = cudnn_plan_create(lib, target, &graph, bug == 1 ? 0 : WORKSPACE_MAX, false, &plan, &err);
        bool refused = status == (bug == 1 ? STATUS_LIMIT : STATUS_UNSUPPORTED) && !strchr(err.msg, '\n');
        printf("bug %d: %s\n", bug, refused ? err.msg : "NOT REFUSED");
        failed += !refused;
        cudnn_plan_free(plan);
    }
}

static enum status target_of(const struct cudnn_lib *lib, const char *folder, int arch, struct cudnn_target *out,
                             struct err *err)
{
    char path[512], json[4096] = "";
    snprintf(path, sizeof path, "%s/sm_%d.json", folder, arch);
    FILE *file = fopen(path, "rb");
    if (!file) return err_set(err, STATUS_NOTFOUND, "cannot open %s", path);
    size_t n = fread(json, 1, sizeof json - 1, file);
    fclose(file);
    json[n] = '\0';
    *out = (struct cudnn_target){.handle = NULL};
    return cudnn_properties(lib, json, &out->properties, err);
}

static void check_arch(const struct cudnn_lib *lib, const struct cudnn_target *target, int which, bool all)
{
    for (size_t i = 0; i < 16; i++) {
        bool shared = i & 1, odd = i >> 1 & 1;
        struct attn_graph_shape shape = {.batch = 4,
                                         .heads = 12,
                                         .kv_heads = shared ? 4 : 12,
                                         .seq = odd ? 1000 : 1024,
                                         .head_dim = head_dims[i >> 2]};
        if (!all && i != (size_t)(3 * which) % 16) continue; /* one shape per GPU, each a different one */
        for (int d = FORWARD; d <= BACKWARD_EXACT; d++)
            if (all || d == FORWARD || d == 1 + which % 2) check(lib, target, archs[which], &shape, (enum direction)d);
    }
}

/* The library must stay loaded when a device is closed. */
static void check_stays(void)
{
    void *object = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    printf("cuDNN %s\n", object ? "stays loaded" : "IS UNLOADED");
    failed += !object;
    if (object) dlclose(object);
}

int main(int argc, char **argv)
{
    struct cudnn_lib lib;
    struct err err = {0};
    bool all = argc > 2 && strcmp(argv[2], "all") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2) {
        fprintf(stderr, "usage: test_cudnn_graphs FOLDER [all]\n");
        return 2;
    }
    if (cudnn_lib_open(&lib, &err) != STATUS_OK) {
        printf("skipped: %s\n", err.msg);
        return 77;
    }
    for (int i = 0; i < (int)(sizeof archs / sizeof *archs); i++) {
        struct cudnn_target target;
        if (target_of(&lib, argv[1], archs[i], &target, &err) != STATUS_OK) {
            printf("%s: %s\n", err.code == STATUS_UNSUPPORTED ? "skipped" : "FAILED", err.msg);
            return err.code == STATUS_UNSUPPORTED ? 77 : 1;
        }
        check_arch(&lib, &target, i, all);
        if (archs[i] == 90) check_refusals(&lib, &target);
        lib.unmake(target.properties);
    }
    cudnn_lib_close(&lib);
    check_stays();
    printf("%d compiled, %d failed, %zu bytes left\n", compiled, failed, mem_live_bytes());
    return failed || mem_live_bytes() ? 1 : 0;
}
