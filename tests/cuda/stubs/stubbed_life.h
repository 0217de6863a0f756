/* A replica's life (created, trained for a few steps, looked at, destroyed) on the whole plugin with stubs of NVIDIA's
 * libraries, of which a test makes calls fail. */
#ifndef TESTS_CUDA_STUBBED_LIFE_H
#define TESTS_CUDA_STUBBED_LIFE_H

#include "common/base/status.h"
#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/cuda/stubs/stub_faults.h"
#include "worker/inner/inner_opt.h"

enum { LIFE_STEPS = 2, LIFE_PARAMS = 2048 };

/* The plugin's, which has its own copies of what programs have. */
struct stubbed_plugin {
    struct cudart_stub *cudart;
    void (*heal)(void);
    size_t (*left)(void), (*live)(void); /* objects of CUDA's runtime; bytes of memory */
    struct stub_faults *cublaslt;
};
extern struct stubbed_plugin stubbed;

struct life {
    const char *device;
    uint32_t ranks;
    bool bf16;
    enum optimizer optimizer;
    bool gradients; /* are what it is for, in the place of steps */
};

struct life_end {
    enum status status;
    struct err why;
    bool created;
    char note[200];                                   /* of a device */
    double losses[LIFE_STEPS + 1], norms[LIFE_STEPS]; /* of steps, and at the end */
    float params[LIFE_PARAMS];                        /* or the last gradient */
    size_t stays;                                     /* bytes */
};

/* For all tests of a program: attention is the own kernels', and there are two GPUs. */
int stubbed_set_up(void **state);
int stubbed_tear_down(void **state);

/* One that takes too long ends the process. */
void stubbed_live(const struct life *life, struct life_end *end);
/* What a stub that was loaded as a library of its own has under this name, or in the plugin (NULL); false: none. */
bool stubbed_find(const char *library, const char *name, void *out);

#endif
