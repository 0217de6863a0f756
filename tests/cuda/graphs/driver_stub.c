/* Stub of libcuda.so.1 for machines without a GPU, sufficient for cuDNN to compile graphs. Loading code and finding its
 * kernels succeed. All other functions fail as in the toolkit's stub, which provides their names (driver_names.h,
 * written by cmake). */
enum { SUCCESS = 0, STUB = 34 };

static int something;

#define REFUSE(name)                                                                                                   \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return STUB;                                                                                                   \
    }
#define SUCCEED(name)                                                                                                  \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return SUCCESS;                                                                                                \
    }
#define FIND(name)                                                                                                     \
    int name(void **out);                                                                                              \
    int name(void **out)                                                                                               \
    {                                                                                                                  \
        *out = &something;                                                                                             \
        return SUCCESS;                                                                                                \
    }
#include "driver_names.h"
FIND(cuLibraryLoadData)
FIND(cuLibraryGetKernel)
FIND(cuKernelGetFunction)
SUCCEED(cuLibraryUnload)
SUCCEED(cuKernelSetAttribute)

int cuKernelGetAttribute(int *value);
int cuKernelGetAttribute(int *value)
{
    *value = 0;
    return SUCCESS;
}
