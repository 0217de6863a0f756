/* A codec's chain: the stages that a spec names, with their parameters, and the table of the stages there are. The
 * questions that a spec alone answers (codec_spec_check, codec_spec_period, codec_list) are answered here, too. */
#ifndef COMPRESS_CODEC_CHAIN_H
#define COMPRESS_CODEC_CHAIN_H

#include "compress/codec_stage.h"

struct codec_chain {
    struct value_ctx value;                               /* stage and param; codec_create knows the rest */
    const struct byte_stage *bytes[CODEC_STAGES_MAX - 1]; /* (n_bytes), in the order of encoding */
    size_t n_bytes;
    char spec[CODEC_SPEC_MAX * CODEC_STAGES_MAX]; /* canonical */
};

/* INVALID with a line that names the bad stage and the known ones; the chain is undefined then. */
enum status codec_chain_parse(struct codec_chain *chain, const char *spec, struct err *err) MUST_CHECK;

#endif
