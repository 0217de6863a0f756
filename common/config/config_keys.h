/* The table of configuration keys, and conversion of one key's value from and to text.
 *
 * YAML, environment, flags, help, printing and comparison all use this table: a new key is one line. */
#ifndef COMMON_CONFIG_KEYS_H
#define COMMON_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"

enum config_type {
    CONFIG_TYPE_TEXT,   /* char[size]: printable UTF-8 */
    CONFIG_TYPE_WORD,   /* char[size]: one of `choices` */
    CONFIG_TYPE_CHOICE, /* enum: one of `choices` */
    CONFIG_TYPE_U32,
    CONFIG_TYPE_U64,
    CONFIG_TYPE_REAL, /* double, finite */
};

/* When a run takes another value of a shared key. Local keys belong to one machine and may differ at each start. */
enum config_change {
    CONFIG_FIXED,    /* never: the key belongs to the run */
    CONFIG_AT_START, /* at any start of the coordinator; not part of the hash */
    CONFIG_RATE,     /* at a start with --change: part of the run from then on */
    CONFIG_RAISE     /* the same, to a larger value */
};

struct config_choice {
    const char *name; /* NULL ends the list */
    int value;        /* of the enum; unused by CONFIG_TYPE_WORD */
};

struct config_key {
    const char *section, *key;
    enum config_type type;
    bool local;                /* belongs to one machine: never sent, not part of the hash */
    enum config_change change; /* of a shared key */
    size_t offset, size;
    const char *preset;                  /* default, as text */
    uint64_t lo, hi;                     /* CONFIG_TYPE_U32 and U64: inclusive range */
    double min, max;                     /* CONFIG_TYPE_REAL: inclusive range */
    bool limit;                          /* CONFIG_TYPE_REAL: "none" is 0, no limit */
    const struct config_choice *choices; /* CONFIG_TYPE_WORD and CHOICE */
    const char *unit, *help;
};

enum { CONFIG_VALUE_MAX = CONFIG_PATH_MAX + 8, CONFIG_KEYS_MAX = sizeof((struct config_sources *)0)->of };

extern const struct config_key config_keys[];
extern const int config_keys_count;

/* Index of section.key in the table, or -1. The names need not be terminated. */
int config_key_find(const char *section, size_t section_len, const char *key, size_t key_len);
/* Write the variable name ATOLL_SECTION_KEY of a key. Returns out. */
const char *config_env_name(int index, char out[128]);
/* Index of the key stored at `offset` of struct config (offsetof). The key must exist. */
int config_key_at(size_t offset);
/* The key is part of the run: shared, and not one that may change at any start. */
bool config_key_of_run(int index);
/* True for a local key that a worker reads: every local key outside the sections coordinator and run. */
bool config_key_of_worker(int index);
/* Index of the key nearest to section.key by edit distance; the section weighs a quarter of the key. section may be "".
 */
int config_key_nearest(const char *section, const char *key);
bool config_section_exists(const char *section);
const char *config_section_nearest(const char *section);

/* Set one key from text. INVALID: the value is unchanged; err names the key, the text and the allowed values. */
enum status config_value_set(struct config *config, int index, const char *text, struct err *err) MUST_CHECK;
/* Write the value as text that config_value_set converts back to the same bits. Returns out. */
const char *config_value_text(const struct config *config, int index, char out[CONFIG_VALUE_MAX]);
/* Write the allowed values: "1 to 4096", "ddp | local-sgd | diloco | async", "text up to 63 bytes". Returns out. */
const char *config_value_range(int index, char *out, size_t cap);

/* Keys of earlier releases. A file, variable or flag that still holds one gets one line that says what to do instead. A
 * value that means what every run of this release does is accepted: a run folder of the release before continues. */
struct config_removed {
    const char *section, *key;
    const char *same;   /* the value that is accepted */
    const char *advice; /* what to do instead */
};

extern const struct config_removed config_removed[];
extern const int config_removed_count;

/* The removed key section.key; NULL: none. The names need not be terminated. */
const struct config_removed *config_removed_find(const char *section, size_t section_len, const char *key,
                                                 size_t key_len);
/* True if a removed key has this section. */
bool config_removed_section(const char *section);
/* INVALID for another value than the accepted one. */
enum status config_removed_check(const struct config_removed *removed, const char *value, struct err *err) MUST_CHECK;

#endif
