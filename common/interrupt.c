#include "common/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t noted;

static void note(int number)
{
    noted = number;
}

void interrupt_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND};
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
