/* The life of a replica (create, train for a few steps, read its state, destroy) on the whole plugin with stubs of
 * NVIDIA's libraries. A test makes calls of the stubs fail. */
#ifndef TESTS_CUDA_STUBBED_LIFE_H
#define TESTS_CUDA_STUBBED_LIFE_H

#include "common/base/status.h"
#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/cuda/stubs/stub_faults.h"
#include "worker/inner/inner_opt.h"

enum { LIFE_STEPS = 2, LIFE_PARAMS = 2048 };

/* Symbols of the plugin, which has its own copies of the program's. */
struct stubbed_plugin {
    struct cudart_stub *cudart;
    void (*heal)(void);
    size_t (*left)(void), (*live)(void); /* objects of CUDA's runtime left; live bytes of memory */
    struct stub_faults *cublaslt;
};
extern struct stubbed_plugin stubbed;

struct life {
    const char *device;
    uint32_t ranks;
    bool bf16;
    enum optimizer optimizer;
    bool gradients; /* compute gradients instead of steps */
};

struct life_end {
    enum status status;
    struct err why;
    bool created;
    char note[200];                                   /* note of the device */
    double losses[LIFE_STEPS + 1], norms[LIFE_STEPS]; /* per step, and at the end */
    float params[LIFE_PARAMS];                        /* parameters, or the last gradient */
    size_t stays;                                     /* bytes not freed */
};

/* Fixtures of a test program: two GPUs, attention by Atoll's kernels. */
int stubbed_set_up(void **state);
int stubbed_tear_down(void **state);

/* Run a life. If it hangs, the process ends. */
void stubbed_live(const struct life *life, struct life_end *end);
/* Find a symbol in a stub library, or in the plugin (NULL). Returns false if it is missing. */
bool stubbed_find(const char *library, const char *name, void *out);

#endif
