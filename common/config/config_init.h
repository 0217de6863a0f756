/* The model of model.init_from: keys of the model section from the folder's config.json. */
#ifndef COMMON_CONFIG_INIT_H
#define COMMON_CONFIG_INIT_H

#include "common/config/config.h"

/* Sets the keys of config->model to the model in FOLDER/config.json. NOTFOUND: there is no such file; the errors of
 * hf_config_load. */
enum status config_init_load(struct config *config, const char *folder, struct err *err) MUST_CHECK;
/* Compares the model of *config with `init`, which the folder describes.
 *
 * - A key with its default gets the value of `init`, and its source becomes CONFIG_PRESET. `sources` NULL: no key does.
 * - INVALID: err lists all keys that differ, with both values.
 * - A Llama has no table of positions, so a shorter block_size does not differ. */
enum status config_init_model(struct config *config, struct config_sources *sources, const struct config *init,
                              const char *folder, struct err *err) MUST_CHECK;

#endif
