/* atoll-worker whose training steps take at least ATOLL_BENCH_STEP_MS milliseconds: many workers of any speed fit on
 * two cores. It sleeps behind the computation, inside the function that trains, so that every measured time includes
 * it. The program links worker/atoll_worker_main.c; tests/CMakeLists.txt wraps replica_train_step. */
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "worker/replica/replica.h"

/* The linker knows the two names by their prefix. */
enum status __real_replica_train_step(struct replica *replica, const uint64_t *counters, size_t n, double lr,
                                      struct step_result *result, struct err *err);
enum status __wrap_replica_train_step(struct replica *replica, const uint64_t *counters, size_t n, double lr,
                                      struct step_result *result, struct err *err);

static uint64_t least_us(void)
{
    const char *text = getenv("ATOLL_BENCH_STEP_MS");
    double ms = text ? strtod(text, NULL) : 0;
    return ms > 0 ? (uint64_t)(1e3 * ms) : 0;
}

/* result->compute_s includes the sleep: the worker is a slow device. */
enum status __wrap_replica_train_step(struct replica *replica, const uint64_t *counters, size_t n, double lr,
                                      struct step_result *result, struct err *err)
{
    uint64_t started = clock_monotonic_us(), least = least_us();
    enum status status = __real_replica_train_step(replica, counters, n, lr, result, err);
    uint64_t taken = clock_monotonic_us() - started;
    if (taken >= least) return status;
    struct timespec rest = {.tv_sec = (time_t)((least - taken) / 1000000),
                            .tv_nsec = (long)((least - taken) % 1000000 * 1000)};
    nanosleep(&rest, NULL);
    result->compute_s = 1e-6 * (double)(clock_monotonic_us() - started);
    return status;
}
