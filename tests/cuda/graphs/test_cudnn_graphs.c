/* Tests that the real cuDNN compiles the attention graphs for GPUs that are not present, with descriptions of the GPUs
 * and a stub of the driver (driver_stub.c). Every shape needs an engine whose workspace is the planned one. Their
 * execution needs a GPU. Exits with 77 without cuDNN. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cudnn/cuda_cudnn_plan.h"

#define WORKSPACE_MAX ((size_t)1 << 30)

/* From data sheets, in the form of cuDNN 9.8. tests/gpu/run has run on an H100. */
static const struct gpu {
    int capability, processors, shared, blocks, threads, clock_khz, memory_khz, bus_bits;
    unsigned long l2, memory;
    const char *name;
} gpus[] = {
    {80, 108, 166912, 32, 2048, 1410000, 1512000, 5120, 41943040, 85051572224, "NVIDIA A100-SXM4-80GB"},
    {86, 84, 101376, 16, 1536, 1740000, 7251000, 384, 6291456, 47850782720, "NVIDIA A40"},
    {89, 142, 101376, 24, 1536, 2520000, 9001000, 384, 100663296, 47810936832, "NVIDIA L40S"},
    {100, 148, 232448, 32, 2048, 1965000, 3996000, 8192, 132644864, 191503007744, "NVIDIA B200"},
    {120, 170, 101376, 24, 1536, 2407000, 14001000, 512, 100663296, 33670692864, "NVIDIA GeForce RTX 5090"},
};

static const char gpu_json[] =
    "{\"deviceVer\": %d, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"maxGridSize\": [2147483647, 65535, 65535],"
    " \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32,"
    " \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d,"
    " \"reservedSharedMemoryPerBlock\": 1024, \"oversizedSharedMemoryPerBlock\": 0, \"maxRegistersPerSM\": 65536,"
    " \"maxCtasPerSM\": %d, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": %d, \"pciDeviceId\": 0,"
    " \"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": %d, \"memClockRateKHz\": %d,"
    " \"memoryBusWidth\": %d, \"l2CacheSize\": %lu, \"totalGlobalMem\": %lu, \"deviceName\": \"%s\"}";

static int failed, compiled;

enum direction { FORWARD, BACKWARD, BACKWARD_EXACT };

static void check(const struct cudnn_lib *lib, const struct cudnn_target *target, struct attn_graph_shape s,
                  enum direction direction)
{
    static const char *const directions[] = {"forward", "backward", "backward exact"};
    struct attn_graph graph;
    struct cudnn_kernel *plan = NULL;
    struct cudnn_plan_facts facts = {0};
    struct err err = {0};
    s.exact = direction == BACKWARD_EXACT;
    if (direction == FORWARD)
        attn_graph_forward(&graph, &s);
    else
        attn_graph_backward(&graph, &s);
    enum status status = cudnn_plan_create(lib, target, &graph, WORKSPACE_MAX, s.exact, &plan, &err);
    if (status == STATUS_OK) facts = cudnn_plan_facts(plan);
    bool known = lib->number / 100 >= 908 && lib->number / 100 <= 928; /* 9.8 to 9.28 behave alike */
    size_t planned = attn_graph_workspace(&s);
    if (status == STATUS_OK && direction != FORWARD && known &&
        (facts.workspace > planned || facts.workspace + 256 < planned))
        status = err_set(&err, STATUS_STATE, "workspace of %zu, planned is %zu", facts.workspace, planned);
    printf("sm_%-3d G%-2zu T%-4zu hd%-3zu %-14s ", s.capability, s.kv_heads, s.seq, s.head_dim, directions[direction]);
    if (status == STATUS_OK)
        printf("engine %d of %d, workspace %zu\n", facts.chosen + 1, facts.engines, facts.workspace);
    else
        printf("FAILED: %s\n", err.msg);
    compiled += status == STATUS_OK;
    failed += status != STATUS_OK;
    cudnn_rt_free(plan);
}

static void check_gpu(const struct cudnn_lib *lib, const struct cudnn_target *target, int capability)
{
    static const size_t head_dims[] = {64, 80, 96, 128};
    for (int i = 0; i < 8; i++) {
        bool shared = i & 1, odd = shared ^ (i >> 1 & 1);
        struct attn_graph_shape shape = {.batch = 4,
                                         .heads = 12,
                                         .kv_heads = shared ? 4 : 12,
                                         .seq = odd ? 1000 : 1024,
                                         .head_dim = head_dims[i >> 1],
                                         .type = ATTN_BF16,
                                         .capability = capability};
        for (int d = FORWARD; d <= BACKWARD_EXACT; d++) check(lib, target, shape, (enum direction)d);
    }
}

/* Describes an absent device, from JSON as cuDNN 9.8 and newer write it. False, with a message: cuDNN cannot. */
static bool describe(const struct cudnn_lib *lib, const char *json, cudnnBackendDescriptor_t *out)
{
#if CUDNN_VERSION >= 90800
    cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
    if (lib->number >= 90800) status = lib->make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            lib->set(*out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(json), json);
    if (status == CUDNN_STATUS_SUCCESS) status = lib->finalize(*out);
    if (status == CUDNN_STATUS_SUCCESS) return true;
    printf("skipped: cuDNN cannot describe devices: 9.8 or newer is needed: %s\n", lib->status_text(status));
#else
    (void)lib, (void)json, (void)out;
    printf("skipped: this build's cuDNN headers are older than 9.8\n");
#endif
    return false;
}

int main(void)
{
    struct cudnn_lib lib;
    struct err err = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cudnn_lib_open(&lib, &err) != STATUS_OK) {
        printf("skipped: %s\n", err.msg);
        return 77;
    }
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        const struct gpu *g = &gpus[i];
        struct cudnn_target target = {.handle = NULL};
        char json[2048];
        snprintf(json, sizeof json, gpu_json, g->capability * 10, g->processors, g->shared, g->blocks, g->threads,
                 g->clock_khz, g->memory_khz, g->bus_bits, g->l2, g->memory, g->name);
        if (!describe(&lib, json, &target.properties)) return 77;
        check_gpu(&lib, &target, g->capability);
        lib.unmake(target.properties);
    }
    cudnn_lib_close(&lib);
    printf("%d compiled, %d failed, %zu bytes left\n", compiled, failed, mem_live_bytes());
    return failed || mem_live_bytes() ? 1 : 0;
}
