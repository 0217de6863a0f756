/* Configuration of a run: one struct and one table of keys (common/config/config_keys.c).
 *
 * - The table parses YAML files, environment variables and flags, checks ranges, prints help and the resolved values.
 * - Precedence: flag > ATOLL_SECTION_KEY > file > default.
 * - The coordinator's configuration is the run's. It sends the shared keys to each worker that joins. Local keys
 *   (paths, devices, threads) are set on each machine. */
#ifndef COMMON_CONFIG_H
#define COMMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/config/codec_spec.h"

enum { CONFIG_PATH_MAX = 1024, CONFIG_NAME_MAX = 64, CONFIG_TEXT_MAX = 65536 };
enum { LOG_EVERY_STEPS = 10 };      /* steps between step lines; ddp: also rounds between round lines */
enum { CONFIG_WORKERS_MAX = 2000 }; /* connected at one time; wire/zmq/peers.c asserts that its tables hold them */

enum train_method { METHOD_DDP, METHOD_LOCAL_SGD, METHOD_DILOCO, METHOD_STREAMING, METHOD_ASYNC };
enum optimizer { OPTIMIZER_SGD, OPTIMIZER_NESTEROV, OPTIMIZER_ADAMW, OPTIMIZER_MUON };
enum schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD };
enum precision { PRECISION_FP32, PRECISION_BF16 };
/* Momentum and residual at the coordinator. AUTO: not resolved; in the settings of a run: of a release without the key,
 * so fp32. */
enum outer_form { OUTER_AUTO, OUTER_FP32, OUTER_BF16 };
/* What the backward pass recomputes instead of keeping; each level recomputes more (worker/model/model.h). */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_ACT, RECOMPUTE_NORM, RECOMPUTE_BLOCK, RECOMPUTE_AUTO };
enum choice_auto { CHOICE_OFF, CHOICE_ON, CHOICE_AUTO };
/* How updates are sent: encoded by a codec; as the deltas themselves (relay); as the values that at least one delta
 * carries (union); or the smaller of relay and union (auto). */
enum config_down { CONFIG_DOWN_CODEC, CONFIG_DOWN_RELAY, CONFIG_DOWN_UNION, CONFIG_DOWN_AUTO };
enum merge_rule { MERGE_MEAN, MERGE_CONTRIBUTORS, MERGE_RDA };
enum merge_clip { MERGE_CLIP_OFF, MERGE_CLIP_MEDIAN, MERGE_CLIP_AUTO };
enum scaling { SCALING_NONE, SCALING_SQRT, SCALING_LINEAR };

struct config {
    struct {
        char name[CONFIG_NAME_MAX];
        uint64_t seed;
        double max_hours, max_gb; /* the run stops early at this time or traffic; 0: no limit; local */
    } run;
    struct {
        char train[CONFIG_PATH_MAX]; /* glob of token shards; local */
        char val[CONFIG_PATH_MAX];   /* glob of token shards; local */
        char tokenizer[CONFIG_PATH_MAX];
    } data;
    struct {
        char family[CONFIG_NAME_MAX]; /* gpt2, llama, external */
        char preset[CONFIG_NAME_MAX]; /* "", d2 .. d48, gpt2, llama-1b ...: sets the keys that are not set */
        uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
        /* only llama; resolved n_kv_head and ffn are not 0. With gpt2 all six keep their defaults. */
        uint32_t n_kv_head, ffn;
        double rope_theta, norm_eps;
        char
            rope_scaling[CONFIG_NAME_MAX]; /* none, or llama3:FACTOR:LOW:HIGH:ORIGINAL (common/tensor/rope_scaling.h) */
        enum choice_auto tie_embeddings;   /* use the token embedding as the output layer */
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
        char eval_every[24];            /* rounds, or "N steps"; 0 = only at the end: config_eval_every */
        uint64_t eval_tokens;           /* validation tokens of a periodic evaluation; the final one uses all */
        uint32_t fragments;             /* 0 = by size */
        enum choice_auto dynamic_steps; /* H of a worker follows its speed; auto = on with async */
        uint32_t overlap;               /* tau: inner steps between a fragment's sync point and its update, 0 to H */
        char apply[16];                 /* how an update changes the trained parameters: replace, correct, mix:ALPHA */
        enum choice_auto stagger;       /* fragments have sync points of their own (Streaming DiLoCo) */
        uint32_t start_step;            /* post-local SGD: rounds of one step and plain averaging before this step */
    } train;
    struct {
        enum optimizer optimizer; /* sgd | adamw | muon */
        enum precision moments;   /* type of the stored moments */
        double learning_rate, beta1, beta2, eps, weight_decay, grad_clip;
        enum schedule schedule;
        uint32_t warmup_steps;
        double min_lr_fraction;
        char scaling[24]; /* of learning_rate: none, sqrt:WORKERS, linear:WORKERS (common/config/schedule.h) */
    } inner;
    struct {
        enum optimizer optimizer; /* sgd | nesterov | adamw; defaults follow the method */
        double learning_rate, momentum;
        enum outer_form state;  /* type of the stored momentum and residual */
        uint32_t max_staleness; /* maximum staleness of an accepted delta, in rounds (async) */
        char grace[16];         /* auto, or seconds in which arrivals become one outer step (async) */
    } outer;
    struct {
        char up[CODEC_SPEC_MAX], down[CODEC_SPEC_MAX]; /* specs, compress/codec.h; down: or relay, union, auto */
        char up_allowed[256]; /* specs, separated by commas, that a worker may have instead of up; "" */
    } codec;
    struct {
        enum merge_rule rule; /* how the deltas of a round are merged, see compress/merge.h */
        enum merge_clip clip;
    } merge;
    struct {
        char listen[256];     /* tcp://HOST:PORT; port * takes a free one */
        char advertise[256];  /* HOST[:PORT] for the join line; auto */
        char quorum[16];      /* all, a number of workers, or a percentage such as 75% */
        uint32_t min_workers; /* workers that must have joined before round 0 opens */
        uint32_t max_workers;
        uint32_t threads;     /* threads of the outer step; 0 = one per core */
        double evict_after_s; /* silence after which a worker is evicted; 0 = 4 median rounds, at least 10 s */
    } coordinator;
    struct {
        uint32_t every, keep;  /* rounds between checkpoints; number of kept checkpoints (0 = all) */
        char worker_every[16]; /* rounds between saves of a worker's own state: a number, 0 = never; or auto */
    } checkpoint;
    struct {
        char level[16]; /* error | warn | info | debug | trace; local */
    } log;
};

/* CONFIG_RUN: a run that continues has another value than CONFIG or the command line gives (--change). */
enum config_source {
    CONFIG_DEFAULT,
    CONFIG_PRESET,
    CONFIG_FILE,
    CONFIG_COORDINATOR,
    CONFIG_ENV,
    CONFIG_FLAG,
    CONFIG_RUN
};

/* Source of each key's value, indexed like the table. */
struct config_sources {
    uint8_t of[128];
    uint32_t line[128];         /* of CONFIG_FILE */
    char file[CONFIG_PATH_MAX]; /* its path */
};

/* Set every key to its default. */
void config_defaults(struct config *config, struct config_sources *sources);
/* Parse YAML text[size]; `where` names it in errors ("configs/demo.yaml"). INVALID for bad YAML, values or unknown
 * keys, with the line and the nearest key; *config is then unchanged. NOMEM. */
enum status config_parse(struct config *config, struct config_sources *sources, const char *text, size_t size,
                         const char *where, enum config_source source, struct err *err) MUST_CHECK;
/* Read and parse a YAML file. NOTFOUND, IO, and the errors of config_parse. */
enum status config_load(struct config *config, struct config_sources *sources, const char *path,
                        struct err *err) MUST_CHECK;
/* Apply ATOLL_SECTION_KEY for every key of the table. INVALID for a bad value and for a misspelt key of a section. */
enum status config_env(struct config *config, struct config_sources *sources, struct err *err) MUST_CHECK;
/* Warn of other ATOLL_ variables that no program reads; they may belong to other software. One program of a run calls
 * this, not each. */
void config_env_warn(void);
/* Prefix the message in err with the sources of the keys' values: "a.yaml:4", "environment, ATOLL_TRAIN_METHOD" or
 * "command line", joined by "and". `keys` are indices of the table, ended by -1. Keys with default or derived values
 * are omitted. */
void config_prefix_sources(const struct config_sources *sources, const int *keys, struct err *err);
/* Apply "--section.key=value" or "section.key=value". INVALID for an unknown key or a bad value. */
enum status config_set(struct config *config, struct config_sources *sources, const char *assignment,
                       enum config_source source, struct err *err) MUST_CHECK;
/* Derive keys from other keys (sizes of a preset, defaults of a method) and check keys against each other, for example
 * n_embd divisible by n_head. Codec specs are checked by their users. Call it once, after all sources. INVALID. */
enum status config_resolve(struct config *config, struct config_sources *sources, struct err *err) MUST_CHECK;

/* Print the whole resolved configuration as YAML; a comment on each line names the source of the value. */
void config_print(const struct config *config, const struct config_sources *sources, FILE *out);
/* Print all keys with default, range, unit and help. */
void config_help(FILE *out);
/* Write the YAML text of the shared keys to out[cap]: the text that the coordinator sends to workers, equal bytes for
 * equal values. Returns the length, or 0 when it does not fit. */
size_t config_shared_text(const struct config *config, char *out, size_t cap);
/* Hash of the keys that belong to the run (config_key_of_run) and their values. */
uint64_t config_run_hash(const struct config *config);
/* Copy the values of these keys. */
void config_take_run(struct config *config, const struct config *from);
/* Take the values of the shared keys that may change in a run from its settings' text. *changed_p: "key = value, ...",
 * changed_p[cap], of those that did; "": none. INVALID: another release wrote the text. NOMEM. */
enum status config_take_changes(struct config *config, const char *text, char *changed_p, size_t cap,
                                struct err *err) MUST_CHECK;
/* Write the keys of the run that differ, "train.sync_every (30 here, 20 in the run), ...", to out[cap]; with `fixed`
 * only those that no --change allows. Returns their number. */
int config_run_diff(const struct config *here, const struct config *run, bool fixed, char *out, size_t cap);

/* model.family external: the first worker's program defines the tensors, and each worker's program owns model, data and
 * inner optimizer. Of the section model only family and init_from have an effect; inner.* has none. */
bool config_is_external(const struct config *config);
/* The steps of a round follow each worker's speed: train.dynamic_steps on, or auto with async. */
bool config_steps_differ(const struct config *config);
/* The journal is fsynced before a worker sees an assignment or an update; otherwise at checkpoints. */
bool config_syncs_updates(const struct config *config);
/* train.eval_every: rounds between evaluations, or inner steps of a worker if *steps_p; 0: only at the end. A text that
 * is neither counts as 0; config_resolve refuses it. */
uint32_t config_eval_every(const struct config *config, bool *steps_p);
/* checkpoint.worker_every: auto, by what saves cost. */
bool config_saves_auto(const struct config *config);
/* The number in it; auto: 1. UINT32_MAX: a text that is neither, which config_resolve refuses. */
uint32_t config_worker_every(const struct config *config);
/* Rounds between saves of a worker's state; 0: it is never saved. auto: 1, from which the worker begins. */
uint64_t config_save_every(const struct config *config);
/* "ddp", "local-sgd", "diloco" or "async". */
const char *config_method_name(enum train_method method);
/* Advice when training diverges: "lower inner.learning_rate" and the other keys of this run that affect it. */
const char *config_divergence_advice(const struct config *config);

#endif
