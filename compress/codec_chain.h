/* The chain of a codec: the stages that a spec names, with their parameters. The .c file holds the table of all stages
 * and answers the questions that need only a spec (codec_spec_check, codec_spec_period, codec_list). */
#ifndef COMPRESS_CODEC_CHAIN_H
#define COMPRESS_CODEC_CHAIN_H

#include "compress/codec_stage.h"

struct codec_chain {
    struct value_ctx value;                               /* stage and param; codec_create sets the other members */
    const struct byte_stage *bytes[CODEC_STAGES_MAX - 1]; /* [n_bytes], in the order of encoding */
    size_t n_bytes;
    char spec[CODEC_SPEC_MAX * CODEC_STAGES_MAX]; /* canonical */
};

/* INVALID: err names the bad stage and the known ones; the chain is then undefined. */
enum status codec_chain_parse(struct codec_chain *chain, const char *spec, struct err *err) MUST_CHECK;

#endif
