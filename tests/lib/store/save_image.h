/* A saved state as its file would be, for storages in memory. */
#ifndef TESTS_LIB_SAVE_IMAGE_H
#define TESTS_LIB_SAVE_IMAGE_H

#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"

/* Head and body end to end, of *size_p bytes; mem_free it. */
uint8_t *save_image(const struct saved_state *state, const struct outer_part *body, size_t n, size_t *size_p);
/* The body still is what the image was made of. */
bool save_image_holds(const uint8_t *image, size_t size, const struct outer_part *body, size_t n);

#endif
