/* The saved state of a worker, one file: parameters and their versions, the inner optimizer, the error-feedback
 * residual, and the encoded deltas not yet merged. The worker writes it before the last byte of a delta is sent. A
 * restarted worker offers the same bytes again and computes the next round from the same state: killing a worker does
 * not change the run.
 *
 * The head is saved_state_parts (docs/recovery.md), then zeros up to a
 * multiple of 64 bytes. The body is theta, trained parameters, base, residual (if present), all fp32 in fragment order;
 * inner optimizer; payloads in fragment order.
 *
 * A worker of several processes also has a file of each of its ranks (worker/outer/rank_file.h). The head then names
 * them by their tag: this file is only complete with them. */
#ifndef WORKER_WORKER_STATE_H
#define WORKER_WORKER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "common/tensor/layout.h"
#include "wire/msg.h"

struct saved_fragment {
    uint64_t version, hash; /* version and hash of theta */
    uint64_t base_version;  /* of the pending delta */
    uint64_t payload_size;  /* 0: no pending delta */
    uint64_t count;         /* floats */
    uint64_t assigned;      /* version in the assignment */
    uint32_t payload_crc;
    float norm; /* L2 norm of the delta */
    bool moved; /* the trained parameters have not adopted this version */
};

/* DECAYED: multiplied by the codec's decay already, for the next delta (struct feedback). */
enum saved_residual { SAVED_RESIDUAL_NONE, SAVED_RESIDUAL, SAVED_RESIDUAL_DECAYED };

struct saved_state {
    uint8_t uuid[WIRE_UUID], run_id[WIRE_UUID];
    uint64_t layout_hash, n_params, inner_size;
    uint64_t round; /* of the pending deltas, else the last that ended; UINT64_MAX: none */
    uint64_t tokens, compute_us;
    double loss_sum;
    uint32_t steps, worker_id, n_fragments;
    uint8_t form;         /* enum delta_form */
    uint8_t has_residual; /* enum saved_residual */
    bool has_live, has_base;
    bool in_round; /* `step` steps of `task` are done */
    uint32_t step;
    struct msg_assign task; /* decode sets lr and epoch to NaN, and versions to those of f */
    struct saved_fragment f[LAYOUT_FRAGMENTS_MAX];
    uint64_t tag;     /* of the files of the ranks */
    uint32_t n_ranks; /* that have one; 0: none */

    /* Set by saved_state_decode; they point into its input. */
    const float *theta, *live, *base, *residual;  /* [n_params]; NULL if absent, never theta */
    const uint8_t *inner;                         /* [inner_size] */
    const uint8_t *payload[LAYOUT_FRAGMENTS_MAX]; /* NULL: none pending */
};

enum { SAVED_RANKS_MAX = 4096 };
enum { SAVED_HEAD_MAX = 1 << 14 }; /* more than the head of LAYOUT_FRAGMENTS_MAX fragments */

extern const struct field_part saved_state_parts[]; /* of the head */

/* Encodes the head in dst[SAVED_HEAD_MAX], for a body of body_size bytes with CRC32C body_crc. Returns the head's
 * length, which depends only on the number of fragments. The caller writes the body in the order above; decode checks
 * it. */
size_t saved_state_head(const struct saved_state *s, uint64_t body_size, uint32_t body_crc, uint8_t *dst);
/* Decodes only the head, for the run id. Errors as saved_state_decode. */
enum status saved_state_peek(struct saved_state *s, const uint8_t *data, size_t size, struct err *err) MUST_CHECK;
/* The same from the first `have` bytes of a file of `size` bytes; SAVED_HEAD_MAX suffice. */
enum status saved_state_peek_head(struct saved_state *s, const uint8_t *data, size_t have, uint64_t size,
                                  struct err *err) MUST_CHECK;
/* Decodes the file and checks both CRCs. data[size] is aligned to 4 bytes, and *s points into it. CORRUPT (err says
 * why), UNSUPPORTED (another format version). */
enum status saved_state_decode(struct saved_state *s, const uint8_t *data, size_t size, struct err *err) MUST_CHECK;

#endif
