/* What those share who fill in and check a configuration: the parts of config_resolve, and coordinator/settings.c. */
#ifndef COMMON_CONFIG_RESOLVE_H
#define COMMON_CONFIG_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config_keys.h"

/* One key of struct config by name: field and source together. */
#define AT(field) config_key_at(offsetof(struct config, field))
#define KEYS(...) ((const int[]){__VA_ARGS__, -1})

struct config_resolve {
    struct config *config;
    struct config_sources *sources;
    struct err *err;
};

/* INVALID, "PLACE: section.key: " before the message: the key is the first of `keys`, PLACE where any of them were
 * given (config_prefix_sources), so that it names whoever caused a disagreement. */
enum status config_refuse(const struct config_resolve *r, const int *keys, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))) MUST_CHECK;
/* Nobody chose the key's value. */
bool config_unset(const struct config_resolve *r, int index);
/* Give a key the value that follows from others, unless somebody chose one. */
enum status config_derive(const struct config_resolve *r, int index, const char *text) MUST_CHECK;
enum status config_derive_u32(const struct config_resolve *r, int index, uint32_t value) MUST_CHECK;
/* "64 or 96": the multiples of `of` around value (the upper one alone when there is no lower one). Returns out. */
const char *config_multiples(uint32_t value, uint32_t of, char out[48]);

/* The model section: preset, keys of the family, sizes that go together. */
enum status config_model_resolve(const struct config_resolve *r) MUST_CHECK;

#endif
