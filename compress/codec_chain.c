#include "compress/codec_chain.h"

#include <assert.h>
#include <string.h>

#define VALUE_STAGE(name, lossless, sparse) &codec_##name,
static const struct value_stage *const value_stages[] = {CODEC_VALUE_STAGES(VALUE_STAGE)};
#define BYTE_STAGE(name) &codec_##name,
static const struct byte_stage *const byte_stages[] = {CODEC_BYTE_STAGES(BYTE_STAGE)};

enum { N_VALUE = sizeof value_stages / sizeof *value_stages, N_BYTE = sizeof byte_stages / sizeof *byte_stages };

static void names_of_stages(char *out, size_t cap)
{
    size_t n = 0;
    for (int i = 0; i < N_VALUE; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", " : "", value_stages[i]->usage);
    n += (size_t)snprintf(out + n, cap - n, "; then any of +");
    for (int i = 0; i < N_BYTE; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", i ? ", +" : "", byte_stages[i]->name);
}

static enum status bad_spec(const char *spec, const char *what, const char *stage, struct err *err)
{
    char names[384];
    names_of_stages(names, sizeof names);
    return err_set(err, STATUS_INVALID, "codec \"%.64s\": %s \"%.32s\"; known: %s", spec, what, stage, names);
}

static enum status parse_value_stage(struct codec_chain *chain, char *stage, const char *spec, struct err *err)
{
    char *args = strchr(stage, ':');
    if (args) *args++ = 0;
    for (int i = 0; i < N_VALUE; i++) {
        if (strcmp(value_stages[i]->name, stage)) continue;
        chain->value.stage = value_stages[i];
        enum status status = value_stages[i]->parse(&chain->value, args, chain->spec, err);
        if (status != STATUS_OK) err_prefix(err, "codec \"%.64s\"", spec);
        return status;
    }
    for (int i = 0; i < N_BYTE; i++)
        if (!strcmp(byte_stages[i]->name, stage)) return bad_spec(spec, "cannot start with", stage, err);
    return bad_spec(spec, "unknown value stage", stage, err);
}

static enum status parse_byte_stage(struct codec_chain *chain, const char *stage, const char *spec, struct err *err)
{
    for (int i = 0; i < N_BYTE; i++) {
        if (strcmp(byte_stages[i]->name, stage)) continue;
        if (chain->n_bytes == CODEC_STAGES_MAX - 1) return bad_spec(spec, "too many stages at", stage, err);
        chain->bytes[chain->n_bytes++] = byte_stages[i];
        size_t n = strlen(chain->spec);
        snprintf(chain->spec + n, sizeof chain->spec - n, "+%s", stage);
        return STATUS_OK;
    }
    return bad_spec(spec, "unknown byte stage", stage, err);
}

enum status codec_chain_parse(struct codec_chain *chain, const char *spec, struct err *err)
{
    char text[CODEC_SPEC_MAX];
    memset(chain, 0, sizeof *chain);
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:/.+-_";
    if (strspn(spec, allowed) != strlen(spec))
        return err_set(err, STATUS_INVALID,
                       "codec: a spec holds only letters, digits and : / . + - _, such as int8:256");
    if (strlen(spec) >= sizeof text)
        return err_set(err, STATUS_INVALID, "codec \"%.64s...\": longer than %d bytes", spec, CODEC_SPEC_MAX - 1);
    memcpy(text, spec, strlen(spec) + 1);
    char *stage = text;
    unsigned modifiers = 0;
    for (bool first = true; stage; first = false) {
        char *plus = strchr(stage, '+');
        if (plus) *plus++ = 0;
        const struct value_stage *v = chain->value.stage;
        if (first)
            TRY(parse_value_stage(chain, stage, spec, err));
        else if (!chain->n_bytes && v->modify && v->modify(&chain->value, stage, modifiers, chain->spec))
            modifiers++;
        else
            TRY(parse_byte_stage(chain, stage, spec, err));
        stage = plus;
    }
    return STATUS_OK;
}

enum status codec_spec_check(const char *spec, struct err *err)
{
    struct codec_chain chain;
    return codec_chain_parse(&chain, spec, err);
}

uint32_t codec_spec_period(const char *spec)
{
    struct codec_chain chain;
    if (codec_chain_parse(&chain, spec, NULL) != STATUS_OK || !chain.value.stage->period) return 0;
    assert(chain.n_bytes < CODEC_STAGES_MAX);
    return chain.value.stage->period(&chain.value);
}

void codec_list(FILE *out)
{
    for (int i = 0; i < N_VALUE; i++)
        fprintf(out, "%-22s value stage  %s\n", value_stages[i]->usage, value_stages[i]->help);
    for (int i = 0; i < N_BYTE; i++)
        fprintf(out, "+%-21s byte stage   %s\n", byte_stages[i]->name, byte_stages[i]->help);
}
