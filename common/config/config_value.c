/* Conversion of one key's value between text and its field of struct config. */
#include "common/config/config_keys.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/number.h"
#include "common/base/text.h"

/* Length of the character at p, or 0 if a value may not contain it. YAML changes line separators and byte order marks
 * inside double quotes. Joiners (U+200C, U+200D) belong to the names of folders in some languages, not to a run's. */
static size_t printable(const char *p, bool is_name)
{
    uint32_t c;
    size_t n = text_character(p, strlen(p), &c);
    bool joins = n && (c == 0x200c || c == 0x200d);
    if (!n || c == 0xfffe || c == 0xffff) return 0;
    return text_is_hidden(c) && (is_name || !joins) ? 0 : n;
}

const char *config_value_range(int index, char *out, size_t cap)
{
    assert(index >= 0 && index < config_keys_count);
    const struct config_key *k = &config_keys[index];
    size_t n = 0;
    out[0] = 0;
    switch (k->type) {
    case CONFIG_TYPE_TEXT: snprintf(out, cap, "text up to %zu bytes", k->size - 1); break;
    case CONFIG_TYPE_U32:
    case CONFIG_TYPE_U64: snprintf(out, cap, "%" PRIu64 " to %" PRIu64, k->lo, k->hi); break;
    case CONFIG_TYPE_REAL: snprintf(out, cap, "%s%g to %g", k->limit ? "none, or " : "", k->min, k->max); break;
    case CONFIG_TYPE_WORD:
    case CONFIG_TYPE_CHOICE:
        for (const struct config_choice *c = k->choices; c->name && n < cap; c++)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", c == k->choices ? "" : " | ", c->name);
        break;
    }
    return out;
}

static enum status refuse(int index, const char *text, const char *what, struct err *err)
{
    char value[TEXT_SHOWN], range[160];
    return err_set(err, STATUS_INVALID, "%s.%s: \"%s\" %s; allowed: %s", config_keys[index].section,
                   config_keys[index].key, text_shown(text, strlen(text), value), what,
                   config_value_range(index, range, sizeof range));
}

static enum status set_text(void *field, int index, const char *text, struct err *err)
{
    size_t n = strlen(text);
    bool is_name = !strcmp(config_keys[index].section, "run") && !strcmp(config_keys[index].key, "name");
    if (n >= config_keys[index].size) return refuse(index, text, "is too long", err);
    for (const char *p = text; *p;) {
        size_t len = printable(p, is_name);
        if (!len) return refuse(index, text, "contains a control character, an invisible one, or is not UTF-8", err);
        p += len;
    }
    memset(field, 0, config_keys[index].size); /* equal values must be equal bytes */
    memcpy(field, text, n);
    return STATUS_OK;
}

static enum status set_choice(void *field, int index, const char *text, struct err *err)
{
    const struct config_key *k = &config_keys[index];
    for (const struct config_choice *c = k->choices; c->name; c++) {
        if (strcmp(c->name, text)) continue;
        if (k->type == CONFIG_TYPE_WORD) return set_text(field, index, text, err);
        memcpy(field, &c->value, sizeof c->value);
        return STATUS_OK;
    }
    return refuse(index, text, "is not a choice", err);
}

static enum status set_whole(void *field, int index, const char *text, struct err *err)
{
    const struct config_key *k = &config_keys[index];
    const char *digits = text + (*text == '-');
    uint64_t v;
    if (!*digits || digits[strspn(digits, "0123456789")]) return refuse(index, text, "is not a whole number", err);
    if (!number_whole(text, &v) || v < k->lo || v > k->hi) return refuse(index, text, "is out of range", err);
    if (k->type == CONFIG_TYPE_U32)
        memcpy(field, &(uint32_t){(uint32_t)v}, sizeof(uint32_t));
    else
        memcpy(field, &v, sizeof v);
    return STATUS_OK;
}

static enum status set_real(void *field, int index, const char *text, struct err *err)
{
    const struct config_key *k = &config_keys[index];
    char *end;
    if (k->limit && !strcmp(text, "none")) text = "0";
    if (!text[0] || text[strspn(text, "0123456789+-.eE")]) return refuse(index, text, "is not a number", err);
    errno = 0;
    double v = strtod(text, &end);
    if (*end) return refuse(index, text, "is not a number", err);
    if (v == 0 && errno == ERANGE) return refuse(index, text, "is too close to 0", err);
    if (!isfinite(v) || v < k->min || v > k->max) return refuse(index, text, "is out of range", err);
    if (v == 0) v = 0; /* -0 becomes 0, so that both print and hash alike */
    memcpy(field, &v, sizeof v);
    return STATUS_OK;
}

enum status config_value_set(struct config *config, int index, const char *text, struct err *err)
{
    assert(index >= 0 && index < config_keys_count);
    void *field = (char *)config + config_keys[index].offset;
    switch (config_keys[index].type) {
    case CONFIG_TYPE_TEXT: return set_text(field, index, text, err);
    case CONFIG_TYPE_WORD:
    case CONFIG_TYPE_CHOICE: return set_choice(field, index, text, err);
    case CONFIG_TYPE_U32:
    case CONFIG_TYPE_U64: return set_whole(field, index, text, err);
    case CONFIG_TYPE_REAL: return set_real(field, index, text, err);
    }
    return STATUS_INVALID;
}

const char *config_value_text(const struct config *config, int index, char out[CONFIG_VALUE_MAX])
{
    assert(index >= 0 && index < config_keys_count);
    const struct config_key *k = &config_keys[index];
    assert(k->size <= CONFIG_VALUE_MAX && k->offset + k->size <= sizeof *config);
    const void *field = (const char *)config + k->offset;
    uint32_t u32;
    uint64_t u64;
    double real;
    int choice;
    switch (k->type) {
    case CONFIG_TYPE_TEXT:
    case CONFIG_TYPE_WORD: snprintf(out, CONFIG_VALUE_MAX, "%s", (const char *)field); break;
    case CONFIG_TYPE_CHOICE:
        memcpy(&choice, field, sizeof choice);
        snprintf(out, CONFIG_VALUE_MAX, "%d",
                 choice); /* fallback for a value outside the enum, which is a caller's error */
        for (const struct config_choice *c = k->choices; c->name; c++)
            if (c->value == choice) {
                snprintf(out, CONFIG_VALUE_MAX, "%s", c->name);
                break;
            }
        break;
    case CONFIG_TYPE_U32:
        memcpy(&u32, field, sizeof u32);
        snprintf(out, CONFIG_VALUE_MAX, "%" PRIu32, u32);
        break;
    case CONFIG_TYPE_U64:
        memcpy(&u64, field, sizeof u64);
        snprintf(out, CONFIG_VALUE_MAX, "%" PRIu64, u64);
        break;
    case CONFIG_TYPE_REAL:
        memcpy(&real, field, sizeof real);
        number_real_text(real, out);
        break;
    }
    return out;
}
