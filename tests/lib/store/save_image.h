/* Makes the file of a saved state in memory. */
#ifndef TESTS_LIB_SAVE_IMAGE_H
#define TESTS_LIB_SAVE_IMAGE_H

#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"

/* Return head and body end to end, of *size_p bytes; the caller frees it with mem_free. */
uint8_t *save_image(const struct saved_state *state, const struct outer_part *body, size_t n, size_t *size_p);
/* Return whether the body still equals the body of the image. */
bool save_image_holds(const uint8_t *image, size_t size, const struct outer_part *body, size_t n);

#endif
