/* Helpers to derive and check configuration keys, used by config_resolve and coordinator/settings.c. */
#ifndef COMMON_CONFIG_RESOLVE_H
#define COMMON_CONFIG_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config_keys.h"

/* AT: index of the key of a field of struct config. KEYS: list of indices, ended by -1. */
#define AT(field) config_key_at(offsetof(struct config, field))
#define KEYS(...) ((const int[]){__VA_ARGS__, -1})

struct config_resolve {
    struct config *config;
    struct config_sources *sources;
    struct err *err;
};

/* Fill err with "PLACE: section.key: MESSAGE" and return INVALID. section.key is the first of `keys`. PLACE names the
 * sources of all of them (config_prefix_sources), so that it shows which source conflicts. */
enum status config_refuse(const struct config_resolve *r, const int *keys, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))) MUST_CHECK;
/* True when the key has its default or a derived value. */
bool config_unset(const struct config_resolve *r, int index);
/* True when every shared key has a source, as in a run's config.yaml: such a text sets keys to their defaults without
 * intention. outer.state is not needed: earlier releases did not write it. */
bool config_lists_all(const struct config_sources *sources);
/* Set a key to a derived value if it is unset (config_unset). */
enum status config_derive(const struct config_resolve *r, int index, const char *text) MUST_CHECK;
enum status config_derive_u32(const struct config_resolve *r, int index, uint32_t value) MUST_CHECK;
/* Write the multiples of `of` around value, "64 or 96"; only the upper one if there is no lower one. Returns out. */
const char *config_multiples(uint32_t value, uint32_t of, char out[48]);

/* Apply model.preset. config_model_resolve includes this. INVALID. */
enum status config_model_preset(const struct config_resolve *r) MUST_CHECK;
/* Resolve the model section: apply the preset, check the keys of the family and the sizes. INVALID. */
enum status config_model_resolve(const struct config_resolve *r) MUST_CHECK;

#endif
