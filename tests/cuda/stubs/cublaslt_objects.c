/* Objects of cuBLASLt in the stub. They are the real library's; the stub records their addresses. Using an object that
 * was never created or is destroyed ends the process with a line. */
#include <cublasLt.h>
#include <dlfcn.h>

#include "tests/cuda/stubs/cublaslt_stub_impl.h"

struct stub_faults cublaslt_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct object {
    struct object *next;
    enum stub_kind kind;
    const void *p;
} * objects;

static const char *const kinds[] = {"a handle", "a description", "a layout", "a preference"};

void stub_keep(const void *p, enum stub_kind kind)
{
    struct object *o = calloc(1, sizeof *o);
    if (!o) abort();
    *o = (struct object){.kind = kind, .p = p};
    pthread_mutex_lock(&cublaslt_faults.lock);
    o->next = objects;
    objects = o;
    cublaslt_faults.left++;
    pthread_mutex_unlock(&cublaslt_faults.lock);
}

static struct object **place_of(const void *p, enum stub_kind kind)
{
    struct object **at = &objects;
    while (*at && ((*at)->p != p || (*at)->kind != kind)) at = &(*at)->next;
    return at;
}

void stub_alive(const void *p, enum stub_kind kind, const char *call)
{
    pthread_mutex_lock(&cublaslt_faults.lock);
    bool found = *place_of(p, kind);
    pthread_mutex_unlock(&cublaslt_faults.lock);
    char what[64];
    snprintf(what, sizeof what, "%s that does not exist", kinds[kind]);
    if (!found) stub_wrong("cublaslt_stub", what, call);
}

void stub_forget(const void *p, enum stub_kind kind, const char *call)
{
    stub_alive(p, kind, call);
    pthread_mutex_lock(&cublaslt_faults.lock);
    struct object **at = place_of(p, kind), *o = *at;
    *at = o->next;
    cublaslt_faults.left--;
    pthread_mutex_unlock(&cublaslt_faults.lock);
    free(o);
}

/* The real library's function of the same name. */
#define TRUE_CALL(name, ...)                                                                                           \
    __extension__({                                                                                                    \
        void *found_ = dlsym(RTLD_NEXT, #name);                                                                        \
        __typeof__(&name) call_;                                                                                       \
        if (!found_) stub_wrong("cublaslt_stub", "the library lacks", #name);                                          \
        memcpy(&call_, &found_, sizeof found_);                                                                        \
        call_(__VA_ARGS__);                                                                                            \
    })
#define FAILS() stub_fault(&cublaslt_faults, __func__)
#define FAILED ((cublasStatus_t)cublaslt_faults.status)
/* Define a function that creates an object: `out`, then all its arguments. */
#define MADE(kind, name, out, ...)                                                                                     \
    __extension__({                                                                                                    \
        *(out) = STUB_NOTHING;                                                                                         \
        bool fails_ = FAILS();                                                                                         \
        cublasStatus_t status_ = fails_ ? FAILED : TRUE_CALL(name, __VA_ARGS__);                                       \
        if (status_ == CUBLAS_STATUS_SUCCESS) stub_keep(*(out), (kind));                                               \
        status_;                                                                                                       \
    })
/* Functions that change or destroy an object. */
#define CHANGED_AND_DESTROYED(kind, set, destroy, object, attribute)                                                   \
    cublasStatus_t set(object it, attribute what, const void *value, size_t bytes)                                     \
    {                                                                                                                  \
        stub_alive(it, (kind), __func__);                                                                              \
        return FAILS() ? FAILED : TRUE_CALL(set, it, what, value, bytes);                                              \
    }                                                                                                                  \
    cublasStatus_t destroy(object it)                                                                                  \
    {                                                                                                                  \
        bool fails = FAILS();                                                                                          \
        stub_forget(it, (kind), __func__);                                                                             \
        cublasStatus_t status = TRUE_CALL(destroy, it);                                                                \
        return fails ? FAILED : status;                                                                                \
    }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    return MADE(STUB_OP, cublasLtMatmulDescCreate, out, out, compute, scale);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    return MADE(STUB_LAYOUT, cublasLtMatrixLayoutCreate, out, out, type, rows, cols, ld);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return MADE(STUB_WISH, cublasLtMatmulPreferenceCreate, out, out);
}

CHANGED_AND_DESTROYED(STUB_OP, cublasLtMatmulDescSetAttribute, cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t,
                      cublasLtMatmulDescAttributes_t)
CHANGED_AND_DESTROYED(STUB_LAYOUT, cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayoutDestroy,
                      cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t)
CHANGED_AND_DESTROYED(STUB_WISH, cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreferenceDestroy,
                      cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t)
