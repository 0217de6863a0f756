/* The run's configuration: one struct, one table of keys (common/config/config_keys.c) that parses YAML files,
 * environment variables and flags, checks ranges, prints help and the resolved result.
 *
 * Precedence: flag > ATOLL_SECTION_KEY > file > default. The coordinator's configuration is the run's: shared keys
 * travel to each worker when it joins, local keys (paths, devices, threads) stay what they are on each machine. */
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/config/codec_spec.h"

enum { CONFIG_PATH_MAX = 1024, CONFIG_NAME_MAX = 64, CONFIG_TEXT_MAX = 65536 };
enum { CONFIG_WORKERS_MAX = 2000 }; /* at one time; wire/peers.c says what has room for so many */

enum train_method { METHOD_DDP, METHOD_LOCAL_SGD, METHOD_DILOCO, METHOD_ASYNC };
enum optimizer { OPTIMIZER_SGD, OPTIMIZER_NESTEROV, OPTIMIZER_ADAMW, OPTIMIZER_MUON };
enum schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD };
enum precision { PRECISION_FP32, PRECISION_BF16 };
/* What backward makes again instead of keeping it, each level more than the one before (worker/model/model.h). */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_ACT, RECOMPUTE_NORM, RECOMPUTE_BLOCK, RECOMPUTE_AUTO };
enum choice_auto { CHOICE_OFF, CHOICE_ON, CHOICE_AUTO };
/* How updates travel: by a codec; as the deltas themselves; as the values that any delta carried; whichever of the two
 * is smaller. */
enum config_down { CONFIG_DOWN_CODEC, CONFIG_DOWN_RELAY, CONFIG_DOWN_UNION, CONFIG_DOWN_AUTO };
enum merge_rule { MERGE_MEAN, MERGE_CONTRIBUTORS };
enum merge_weights { MERGE_WEIGHTS_TOKENS, MERGE_WEIGHTS_EQUAL };
enum merge_clip { MERGE_CLIP_OFF, MERGE_CLIP_MEDIAN };
enum journal_sync { JOURNAL_SYNC_AUTO, JOURNAL_SYNC_UPDATE, JOURNAL_SYNC_SNAPSHOT };

struct config {
    struct {
        char name[CONFIG_NAME_MAX];
        uint64_t seed;
    } run;
    struct {
        char train[CONFIG_PATH_MAX]; /* glob of token shards; local */
        char val[CONFIG_PATH_MAX];   /* glob of token shards; local */
        char tokenizer[CONFIG_PATH_MAX];
    } data;
    struct {
        char family[CONFIG_NAME_MAX]; /* gpt2, llama */
        char preset[CONFIG_NAME_MAX]; /* "", d2 .. d48, gpt2, llama-1b ...: fills what nobody set */
        uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
        /* llama alone; resolved, n_kv_head and ffn are not 0 there. gpt2 leaves all six as they are by default. */
        uint32_t n_kv_head, ffn;
        double rope_theta, norm_eps;
        char
            rope_scaling[CONFIG_NAME_MAX]; /* none, or llama3:FACTOR:LOW:HIGH:ORIGINAL (common/tensor/rope_scaling.h) */
        enum choice_auto tie_embeddings;   /* the output layer is the token embedding */
        char init_from[CONFIG_PATH_MAX];   /* scratch, or a Hugging Face folder (coordinator's machine) */
    } model;
    struct {
        enum train_method method;
        uint32_t max_steps;  /* inner optimizer steps of one worker */
        uint32_t sync_every; /* H; ddp forces 1 */
        uint32_t batch_size; /* sequences a micro-step, per worker (all its ranks together) */
        uint32_t grad_accum; /* micro-steps an optimizer step */
        enum precision precision;
        enum recompute recompute; /* local */
        uint32_t threads;         /* compute threads of one worker (CPU); local */
        uint32_t ranks;           /* data-parallel ranks inside a worker: GPUs, or groups of threads on CPU; local */
        char devices[CONFIG_NAME_MAX];  /* auto | cpu | cuda | cuda:0,1; local */
        uint32_t eval_every;            /* rounds; 0 = only at the end */
        uint64_t eval_tokens;           /* validation tokens of a periodic evaluation; the final one takes all */
        uint32_t fragments;             /* 0 = by size */
        enum choice_auto dynamic_steps; /* DyLU: H of a worker follows its speed; auto = on with async */
    } train;
    struct {
        enum optimizer optimizer; /* sgd | adamw | muon */
        enum precision moments;   /* what it keeps from step to step */
        double learning_rate, beta1, beta2, eps, weight_decay, grad_clip;
        double muon_momentum;
        uint32_t muon_steps; /* of the Newton-Schulz iteration */
        enum schedule schedule;
        uint32_t warmup_steps;
        double min_lr_fraction;
    } inner;
    struct {
        enum optimizer optimizer; /* sgd | nesterov | adamw; defaults follow the method */
        double learning_rate, momentum;
        uint32_t max_staleness; /* rounds a delta may be behind before it is refused (async) */
        double staleness_power; /* weight (1 + staleness)^-power (async) */
        uint32_t buffer;        /* N of delayed Nesterov; 0 = number of workers (async) */
    } outer;
    struct {
        char up[CODEC_SPEC_MAX], down[CODEC_SPEC_MAX]; /* specs, compress/codec.h; down: or relay, union, auto */
        enum choice_auto error_feedback;               /* auto = on for lossy codecs */
    } codec;
    struct {
        enum merge_rule rule; /* how the deltas of a round become one, see compress/merge.h */
        enum merge_weights weights;
        enum merge_clip clip;
    } merge;
    struct {
        char listen[256];     /* tcp://HOST:PORT; port * takes a free one */
        char advertise[256];  /* HOST[:PORT] for the join line; auto */
        char quorum[16];      /* all, a number of workers, or a percentage such as 75% */
        uint32_t min_workers; /* workers that must have joined before round 0 opens */
        uint32_t max_workers;
        uint32_t threads;     /* of the outer step; 0 = one a core */
        double evict_after_s; /* a worker not heard of for so long loses its place; 0 = from measured rounds */
    } coordinator;
    struct {
        uint32_t every, keep;  /* rounds between checkpoints; how many are kept (0 = all) */
        uint32_t worker_every; /* rounds between saves of a worker's own state; 0 = never */
    } checkpoint;
    struct {
        enum journal_sync sync; /* auto: update when sync_every > 1, snapshot when 1 */
    } journal;
    struct {
        char level[16];       /* error | warn | info | debug | trace; local */
        uint32_t every_steps; /* a step line every so many steps; local */
    } log;
};

enum config_source { CONFIG_DEFAULT, CONFIG_PRESET, CONFIG_FILE, CONFIG_COORDINATOR, CONFIG_ENV, CONFIG_FLAG };

/* Where each key's value came from, indexed like the table. */
struct config_sources {
    uint8_t of[128];
    uint32_t line[128];         /* of CONFIG_FILE */
    char file[CONFIG_PATH_MAX]; /* its path */
};

void config_defaults(struct config *config, struct config_sources *sources);
/* Read YAML text; `where` names it in errors ("configs/demo.yaml"). Unknown key: INVALID with line and nearest key. */
enum status config_parse(struct config *config, struct config_sources *sources, const char *text, size_t size,
                         const char *where, enum config_source source, struct err *err) MUST_CHECK;
enum status config_load(struct config *config, struct config_sources *sources, const char *path,
                        struct err *err) MUST_CHECK;
/* Apply ATOLL_SECTION_KEY for every key of the table. INVALID for ATOLL_SECTION_ with something that is nearly a
 * key. */
enum status config_env(struct config *config, struct config_sources *sources, struct err *err) MUST_CHECK;
/* Warn of other ATOLL_ variables that no program reads (others' may be called so, too). Once for a run, not by each of
 * its programs. */
void config_env_warn(void);
/* Say in front of the message in err where the values of these keys (indices of the table, -1 ends them) were given:
 * "a.yaml:4", "environment, ATOLL_TRAIN_METHOD", "command line", several with "and" between. Those that nobody gave are
 * left out. */
void config_prefix_sources(const struct config_sources *sources, const int *keys, struct err *err);
/* "--section.key=value" (or section.key=value). */
enum status config_set(struct config *config, struct config_sources *sources, const char *assignment,
                       enum config_source source, struct err *err) MUST_CHECK;
/* Fill what follows from other keys (preset sizes, method defaults) and check what one key alone cannot say
 * (n_embd divisible by n_head, codec specs are checked by their users, ...). Call once after all sources. */
enum status config_resolve(struct config *config, struct config_sources *sources, struct err *err) MUST_CHECK;

/* YAML of the whole resolved configuration; each line ends with a comment saying where the value came from. */
void config_print(const struct config *config, const struct config_sources *sources, FILE *out);
/* Table of keys with type, default, range and help. */
void config_help(FILE *out);
/* YAML text of the shared keys, the same bytes for the same values: what travels and what config_hash covers.
 * Returns the length, or 0 when it does not fit. */
size_t config_shared_text(const struct config *config, char *out, size_t cap);
uint64_t config_shared_hash(const struct config *config);
/* Names of shared keys whose values differ, "train.sync_every (30 here, 20 there), ...", into out. Returns how many. */
int config_shared_diff(const struct config *here, const struct config *there, char *out, size_t cap);

/* Helpers every reader of the configuration uses. */
const char *config_method_name(enum train_method method);
/* What to do where training does not stay finite: "lower inner.learning_rate", and what else of this run drives it. */
const char *config_divergence_advice(const struct config *config);

#endif
