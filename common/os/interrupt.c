#include "common/os/interrupt.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

static volatile sig_atomic_t noted;
static atomic_uint_fast64_t first_us; /* when the first one came; 0: none did */

struct sigaction interrupt_action(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&action.sa_mask, numbers[i]);
    return action;
}

void interrupt_on_signal(int number)
{
    uint_fast64_t now = clock_monotonic_us(), first = 0;
    if (atomic_compare_exchange_strong(&first_us, &first, now) || now - first < INTERRUPT_SAME_US) return;
    signal(number, SIG_DFL);
    raise(number); /* and it comes when the handler is left */
}

static void note(int number)
{
    interrupt_on_signal(number);
    noted = number;
}

void interrupt_catch(void)
{
    const struct sigaction action = interrupt_action(note);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
}

enum status interrupt_check(struct err *err)
{
    if (!noted) return STATUS_OK;
    return err_set(err, STATUS_INTERRUPTED,
                   "stopped by a signal, and what was written is removed: start it again the same way");
}
