/* Kernels known by the bytes they touch: compiled with -fsanitize=thread, whose calls (races_calls.c) come here and go
 * to the vector clocks of the queues (emulate_clock.c). For plugins; races.h looks inside of a kernel instead. */
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
