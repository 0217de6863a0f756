#include "common/os/interrupt.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

static volatile sig_atomic_t caught;  /* number of the last signal; 0: none */
static atomic_uint_fast64_t first_us; /* time of the first signal; 0: none */

struct sigaction interrupt_action(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&action.sa_mask, signals[i]);
    return action;
}

void interrupt_on_signal(int number)
{
    uint_fast64_t now = clock_monotonic_us(), first = 0;
    if (atomic_compare_exchange_strong(&first_us, &first, now) || now - first < INTERRUPT_SAME_US) return;
    signal(number, SIG_DFL);
    raise(number); /* blocked in the handler: delivered when it returns */
}

static void note(int number)
{
    interrupt_on_signal(number);
    caught = number;
}

void interrupt_catch(void)
{
    const struct sigaction action = interrupt_action(note);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction now;
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaction(signals[i], &action, NULL);
    }
}

enum status interrupt_check(struct err *err)
{
    if (!caught) return STATUS_OK;
    return err_set(err, STATUS_INTERRUPTED,
                   "stopped by a signal; the unfinished output is removed: run the same command again");
}
