#include "common/config/codec_spec.h"

#include <stddef.h>
#include <string.h>

#define VALUE_NAME(name, lossless, sparse) {#name, lossless, sparse},
static const struct value_name {
    const char *name;
    bool lossless, sparse;
} value_names[] = {CODEC_VALUE_STAGES(VALUE_NAME)};

#define BYTE_NAME(name) #name,
static const char *const byte_names[] = {CODEC_BYTE_STAGES(BYTE_NAME)};

static bool begins(const char *spec, const char *name)
{
    size_t n = strlen(name);
    return !strncmp(spec, name, n) && (!spec[n] || strchr(":+", spec[n]));
}

static const struct value_name *value_of(const char *spec)
{
    for (size_t i = 0; i < sizeof value_names / sizeof *value_names; i++)
        if (begins(spec, value_names[i].name)) return &value_names[i];
    return NULL;
}

static bool is_byte_stage(const char *spec)
{
    for (size_t i = 0; i < sizeof byte_names / sizeof *byte_names; i++)
        if (begins(spec, byte_names[i])) return true;
    return false;
}

bool codec_spec_lossless(const char *spec)
{
    const struct value_name *value = value_of(spec);
    return value && value->lossless;
}

bool codec_spec_sparse(const char *spec)
{
    const struct value_name *value = value_of(spec);
    return value && value->sparse;
}

bool codec_spec_staged(const char *spec)
{
    while ((spec = strchr(spec, '+')) && !is_byte_stage(++spec)) {
    }
    return spec != NULL;
}
