/* What the stub workers of one process share (tests/lib/net/stub_worker.h): the model of the run and their deltas. The
 * functions end the process on errors. */
#ifndef TESTS_LIB_STUB_MODEL_H
#define TESTS_LIB_STUB_MODEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "wire/msg.h"

/* Several variants of the deltas, if they fit in STUB_VARIANTS_BYTES. */
enum { STUB_VARIANTS_MAX = 4, STUB_VARIANTS_BYTES = 1 << 30 };

struct stub_delta {
    uint8_t *payload; /* [size] */
    size_t size;
    uint32_t crc;
    uint8_t form; /* enum delta_form */
    float norm;
};

struct stub_model {
    uint32_t workers; /* given */
    pthread_mutex_t lock;
    bool made;
    uint64_t rounds; /* of the run */
    struct config config;
    struct config_sources sources;
    struct layout layout;
    char text[8192]; /* config.json */
    uint8_t *layout_bytes;
    size_t layout_size;
    uint32_t variants; /* worker i sends those of i % variants */
    struct stub_delta deltas[STUB_VARIANTS_MAX][LAYOUT_FRAGMENTS_MAX];
};

_Noreturn void stub_die(const char *what);
/* The first CONFIG makes the model; later ones change nothing. Any thread may call it. */
void stub_model_make(struct stub_model *model, const struct msg_config *m);
/* Bytes of the payloads of one variant. */
uint64_t stub_model_bytes(const struct stub_model *model, uint32_t variant);
void stub_model_finish(struct stub_model *model);

#endif
