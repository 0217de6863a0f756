/* Logistic regression on generated data, trained by several machines: a program in plain C that joins a run.
 *
 *     cc -O2 -o library examples/library.c $(pkg-config --cflags --libs atoll) -lm
 *     atoll-coordinator examples/library.yaml --dir RUN       then, in two terminals: ./library RUN
 */
#include <atoll.h>
#include <math.h>
#include <stdio.h>

enum { FEATURES = 20, SAMPLES = 10000 };
static const float rate = 0.1f;

/* Sample i: features from a hash of i, label from a hidden rule. Every worker can make every sample. */
static float sample(uint64_t i, float x[FEATURES])
{
    uint64_t h = i * 0x9e3779b97f4a7c15u + 1;
    float sum = 0;
    for (int k = 0; k < FEATURES; k++) {
        h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
        x[k] = (float)(h >> 40) / (1 << 23) - 1;
        sum += x[k] * (k % 3 == 0 ? 2.0f : -1.0f);
    }
    return sum > 0 ? 1.0f : 0.0f;
}

/* One step of SGD on n leased samples; adds their mean loss to *loss. The run chooses n, so no buffer holds them. */
static enum atoll_status train_step(struct atoll *a, double *loss, uint32_t n, struct atoll_error *error)
{
    float *w = atoll_params(a), x[FEATURES], gradient[FEATURES + 1] = {0}; /* w: the weights, then the bias */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t index;
        enum atoll_status status = atoll_samples(a, &index, 1, error);
        if (status != ATOLL_OK) return status;
        float y = sample(index, x), z = w[FEATURES];
        for (int k = 0; k < FEATURES; k++) z += w[k] * x[k];
        float off = 1 / (1 + expf(-z)) - y;
        *loss += log1p(exp(y > 0 ? -z : z)) / n;
        for (int k = 0; k < FEATURES; k++) gradient[k] += off * x[k] / (float)n;
        gradient[FEATURES] += off / (float)n;
    }
    for (int k = 0; k <= FEATURES; k++) w[k] -= rate * gradient[k];
    return ATOLL_OK;
}

/* A round: the run's parameters, H steps on leased samples, back to the run. */
static enum atoll_status train_round(struct atoll *a, struct atoll_error *error)
{
    struct atoll_round round;
    enum atoll_action action = ATOLL_CONTINUE;
    enum atoll_status status = atoll_begin(a, &round, error);
    while (status == ATOLL_OK && action == ATOLL_CONTINUE) {
        struct atoll_step step = {.tokens = round.step_samples, .loss = 0, .lr = rate, .grad_norm = NAN};
        if ((status = train_step(a, &step.loss, round.step_samples, error)) != ATOLL_OK) return status;
        status = atoll_step(a, &step, &action, error);
    }
    return status == ATOLL_OK && action == ATOLL_SYNC ? atoll_push(a, error) : status;
}

int main(int argc, char **argv)
{
    const struct atoll_tensor tensors[] = {{.name = "weight", .ndim = 1, .shape = {FEATURES}}, {.name = "bias"}};
    struct atoll_options options = {.size = sizeof options,
                                    .join = argc > 1 ? argv[1] : NULL,
                                    .tensors = tensors,
                                    .n_tensors = 2,
                                    .train = {.hash = 1, .samples = SAMPLES}};
    struct atoll *a;
    struct atoll_error error;
    enum atoll_event event = ATOLL_WAITING;
    enum atoll_status status = atoll_open(&a, &options, &error);
    while (status == ATOLL_OK && event != ATOLL_DONE) {
        status = atoll_wait(a, 1000, &event, &error);
        if (status == ATOLL_OK && event == ATOLL_TRAIN) status = train_round(a, &error);
    }
    if (status != ATOLL_OK) return fprintf(stderr, "library: %s\n", error.text), 1;
    float *w = atoll_params(a);
    printf("%s\nweights of features 0 and 1: %.2f, %.2f; theta %016llx\n", atoll_text(a), w[0], w[1],
           (unsigned long long)atoll_theta_hash(a));
    atoll_close(a);
}
