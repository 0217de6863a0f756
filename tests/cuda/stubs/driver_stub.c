/* Stub of libcuda.so.1 for machines without a GPU, sufficient for cuDNN to compile graphs. Loading code and finding its
 * kernels succeed. All other functions fail as in the toolkit's stub, which provides their names (driver_names.h,
 * written by cmake). */
#include <stddef.h>

enum { SUCCESS = 0, STUB = 34 };

#define REFUSE(name)                                                                                                   \
    int name(void);                                                                                                    \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return STUB;                                                                                                   \
    }
#include "driver_names.h"

static int something;

int cuLibraryLoadData(void **library);
int cuLibraryGetKernel(void **kernel);
int cuLibraryUnload(void);
int cuKernelGetFunction(void **function);
int cuKernelSetAttribute(void);
int cuKernelGetAttribute(int *value);

int cuLibraryLoadData(void **library)
{
    *library = &something;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel)
{
    *kernel = &something;
    return SUCCESS;
}

int cuLibraryUnload(void)
{
    return SUCCESS;
}

int cuKernelGetFunction(void **function)
{
    *function = &something;
    return SUCCESS;
}

int cuKernelSetAttribute(void)
{
    return SUCCESS;
}

int cuKernelGetAttribute(int *value)
{
    *value = 0;
    return SUCCESS;
}
