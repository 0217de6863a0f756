/* The functions that gcc and clang call for every memory access of code compiled with -fsanitize=thread. The linker's
 * --wrap catches copies that became calls of memcpy (clang 14 and gcc leave them to libtsan, newer clangs call
 * __tsan_memcpy). Kernels have no atomics, so their functions are missing. */
#include <string.h>

#include "tests/cuda/races/races.h"

#define ACCESS(name, bytes, write)                                                                                     \
    void __tsan_##name(const void *p);                                                                                 \
    void __tsan_##name(const void *p)                                                                                  \
    {                                                                                                                  \
        races_access(p, (bytes), (write), __builtin_return_address(0));                                                \
    }
#define BOTH(prefix, bytes)                                                                                            \
    ACCESS(prefix##read##bytes, bytes, false)                                                                          \
    ACCESS(prefix##write##bytes, bytes, true)

BOTH(, 1)
BOTH(, 2)
BOTH(, 4)
BOTH(, 8)
BOTH(, 16)
BOTH(unaligned_, 2)
BOTH(unaligned_, 4)
BOTH(unaligned_, 8)
BOTH(unaligned_, 16)

#define RANGE(name, write)                                                                                             \
    void __tsan_##name(const void *p, size_t bytes);                                                                   \
    void __tsan_##name(const void *p, size_t bytes)                                                                    \
    {                                                                                                                  \
        races_access(p, bytes, (write), __builtin_return_address(0));                                                  \
    }

RANGE(read_range, false)
RANGE(write_range, true)

void __tsan_init(void);
void __tsan_init(void)
{
    races_begin();
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    (void)caller;
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}

/* Define a copy function under any of its names; `real` does the copy. */
#define COPY(name, real)                                                                                               \
    void *name(void *to, const void *from, size_t bytes);                                                              \
    void *name(void *to, const void *from, size_t bytes)                                                               \
    {                                                                                                                  \
        races_access(from, bytes, false, __builtin_return_address(0));                                                 \
        races_access(to, bytes, true, __builtin_return_address(0));                                                    \
        return real(to, from, bytes);                                                                                  \
    }
#define SET(name)                                                                                                      \
    void *name(void *to, int value, size_t bytes);                                                                     \
    void *name(void *to, int value, size_t bytes)                                                                      \
    {                                                                                                                  \
        races_access(to, bytes, true, __builtin_return_address(0));                                                    \
        return __real_memset(to, value, bytes);                                                                        \
    }

void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__real_memmove(void *to, const void *from, size_t bytes);
void *__real_memset(void *to, int value, size_t bytes);

COPY(__wrap_memcpy, __real_memcpy)
COPY(__tsan_memcpy, __real_memcpy)
COPY(__wrap_memmove, __real_memmove)
COPY(__tsan_memmove, __real_memmove)
SET(__wrap_memset)
SET(__tsan_memset)
