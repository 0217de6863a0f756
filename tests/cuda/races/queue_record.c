/* Records the bytes that kernels access in the vector clocks of the queues (emulate_clock.c). The kernels are compiled
 * with -fsanitize=thread, and races_calls.c calls this file. For plugins; races.h checks the threads of a kernel
 * instead. */
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/cuda/races/races.h"

void races_begin(void)
{
}

void races_access(const void *p, size_t bytes, bool write, const void *code)
{
    (void)code;
    if (emulate_running) emulate_touch(emulate_running, p, bytes, write);
}
