#ifdef ATOLL_CUDNN

#include "gpu/cuda/cudnn/cuda_cudnn_lib.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static enum status load(struct cudnn_lib *lib, const char *path, struct err *err)
{
    /* The library is never unloaded, like atoll_cuda.so (gpu/plugin.c): devices are closed and reopened, and the CUDA
     * runtime inside it does not support unloading. */
    lib->object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->object) {
        const char *why = dlerror();
        return err_set(err, STATUS_UNSUPPORTED,
                       "cannot load cuDNN (%.200s): install cuDNN 9, or set ATOLL_CUDNN_LIBRARY to its file",
                       why ? why : path);
    }
    /* memcpy, because C has no cast from an object pointer to a function pointer. */
#define CUDNN_LIB_FIND(symbol, member)                                                                                 \
    {                                                                                                                  \
        void *found_ = dlsym(lib->object, #symbol);                                                                    \
        if (!found_)                                                                                                   \
            return err_set(err, STATUS_UNSUPPORTED, "%s has no " #symbol ": cuDNN 9.6 or newer is needed", path);      \
        memcpy(&lib->member, &found_, sizeof found_);                                                                  \
    }
    CUDNN_LIB_CALLS(CUDNN_LIB_FIND)
#undef CUDNN_LIB_FIND
    lib->number = lib->version();
    if (lib->number >= CUDNN_LIB_OLDEST) return STATUS_OK;
    return err_set(err, STATUS_UNSUPPORTED, "%s is version %zu.%zu: cuDNN 9.6 or newer is needed", path,
                   lib->number / 10000, lib->number / 100 % 100);
}

enum status cudnn_lib_open(struct cudnn_lib *lib, struct err *err)
{
    const char *override = getenv("ATOLL_CUDNN_LIBRARY");
    *lib = (struct cudnn_lib){.object = NULL};
    enum status status = load(lib, override && *override ? override : "libcudnn.so.9", err);
    if (status != STATUS_OK) cudnn_lib_close(lib);
    return status;
}

void cudnn_lib_close(struct cudnn_lib *lib)
{
    if (lib->object) dlclose(lib->object);
    *lib = (struct cudnn_lib){.object = NULL};
}

#else
typedef int atoll_cudnn_is_not_in_this_build;
#endif
