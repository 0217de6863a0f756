#include "common/config/config_keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

#define U32_MAX 4294967295u

static const struct config_choice choices_family[] = {{"gpt2", 0}, {"llama", 0}, {"external", 0}, {NULL, 0}};
static const struct config_choice choices_method[] = {{"ddp", METHOD_DDP},       {"local-sgd", METHOD_LOCAL_SGD},
                                                      {"diloco", METHOD_DILOCO}, {"streaming", METHOD_STREAMING},
                                                      {"async", METHOD_ASYNC},   {NULL, 0}};
static const struct config_choice choices_precision[] = {{"fp32", PRECISION_FP32}, {"bf16", PRECISION_BF16}, {NULL, 0}};
static const struct config_choice choices_state[] = {
    {"auto", OUTER_AUTO}, {"fp32", OUTER_FP32}, {"bf16", OUTER_BF16}, {NULL, 0}};
static const struct config_choice choices_recompute[] = {{"auto", RECOMPUTE_AUTO},   {"none", RECOMPUTE_NONE},
                                                         {"act", RECOMPUTE_ACT},     {"norm", RECOMPUTE_NORM},
                                                         {"block", RECOMPUTE_BLOCK}, {NULL, 0}};
static const struct config_choice choices_inner[] = {
    {"sgd", OPTIMIZER_SGD}, {"adamw", OPTIMIZER_ADAMW}, {"muon", OPTIMIZER_MUON}, {NULL, 0}};
static const struct config_choice choices_outer[] = {
    {"sgd", OPTIMIZER_SGD}, {"nesterov", OPTIMIZER_NESTEROV}, {"adamw", OPTIMIZER_ADAMW}, {NULL, 0}};
static const struct config_choice choices_schedule[] = {{"constant", SCHEDULE_CONSTANT},
                                                        {"linear", SCHEDULE_LINEAR},
                                                        {"cosine", SCHEDULE_COSINE},
                                                        {"wsd", SCHEDULE_WSD},
                                                        {NULL, 0}};
/* Of several names for one value, the first one is printed. */
static const struct config_choice choices_auto[] = {{"auto", CHOICE_AUTO}, {"on", CHOICE_ON},     {"off", CHOICE_OFF},
                                                    {"true", CHOICE_ON},   {"false", CHOICE_OFF}, {NULL, 0}};
static const struct config_choice choices_switch[] = {
    {"off", CHOICE_OFF}, {"on", CHOICE_ON}, {"false", CHOICE_OFF}, {"true", CHOICE_ON}, {NULL, 0}};
static const struct config_choice choices_rule[] = {
    {"mean", MERGE_MEAN}, {"contributors", MERGE_CONTRIBUTORS}, {"rda", MERGE_RDA}, {NULL, 0}};
static const struct config_choice choices_clip[] = {{"auto", MERGE_CLIP_AUTO},
                                                    {"off", MERGE_CLIP_OFF},
                                                    {"median", MERGE_CLIP_MEDIAN},
                                                    {"false", MERGE_CLIP_OFF},
                                                    {NULL, 0}};
static const struct config_choice choices_level[] = {{"error", 0}, {"warn", 0},  {"info", 0},
                                                     {"debug", 0}, {"trace", 0}, {NULL, 0}};

/* clang-format off */
#define KEY(s, k, t, d) .section = #s, .key = #k, .type = CONFIG_TYPE_##t, .preset = (d), \
    .offset = offsetof(struct config, s.k), .size = sizeof(((struct config *)0)->s.k)
#define TEXT(s, k, d, h) {KEY(s, k, TEXT, d), .help = (h)}
#define WORD(s, k, d, c, h) {KEY(s, k, WORD, d), .choices = (c), .help = (h)}
#define CHOICE(s, k, d, c, h) {KEY(s, k, CHOICE, d), .choices = (c), .help = (h)}
#define U32(s, k, d, from, to, u, h) {KEY(s, k, U32, d), .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define U64(s, k, d, from, to, u, h) {KEY(s, k, U64, d), .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define REAL(s, k, d, from, to, u, h) {KEY(s, k, REAL, d), .min = (from), .max = (to), .unit = (u), .help = (h)}
#define START_TEXT(s, k, d, h) {KEY(s, k, TEXT, d), .change = CONFIG_AT_START, .help = (h)}
#define START_U32(s, k, d, from, to, u, h) \
    {KEY(s, k, U32, d), .change = CONFIG_AT_START, .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define START_U64(s, k, d, from, to, u, h) \
    {KEY(s, k, U64, d), .change = CONFIG_AT_START, .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define RAISE_U32(s, k, d, from, to, u, h) \
    {KEY(s, k, U32, d), .change = CONFIG_RAISE, .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define RATE_REAL(s, k, d, from, to, u, h) \
    {KEY(s, k, REAL, d), .change = CONFIG_RATE, .min = (from), .max = (to), .unit = (u), .help = (h)}
#define LOCAL_TEXT(s, k, d, h) {KEY(s, k, TEXT, d), .local = true, .help = (h)}
#define LOCAL_WORD(s, k, d, c, h) {KEY(s, k, WORD, d), .local = true, .choices = (c), .help = (h)}
#define LOCAL_CHOICE(s, k, d, c, h) {KEY(s, k, CHOICE, d), .local = true, .choices = (c), .help = (h)}
#define LOCAL_U32(s, k, d, from, to, u, h) \
    {KEY(s, k, U32, d), .local = true, .lo = (from), .hi = (to), .unit = (u), .help = (h)}
#define LOCAL_REAL(s, k, d, from, to, u, h) \
    {KEY(s, k, REAL, d), .local = true, .min = (from), .max = (to), .unit = (u), .help = (h)}
#define LIMIT_REAL(s, k, u, h) \
    {KEY(s, k, REAL, "0"), .local = true, .limit = true, .max = 1e9, .unit = (u), .help = (h)}
/* clang-format on */

const struct config_key config_keys[] = {
    START_TEXT(run, name, "run", "name of the run: letters, digits, '.', '_' and '-'"),
    U64(run, seed, "1", 0, UINT64_MAX, "", "seed of the initial parameters and the sample order"),
    LIMIT_REAL(
        run, max_hours, "h",
        "stop early, with a checkpoint and code 75, after this time with a coordinator, over all its starts; 0 or "
        "none: no limit"),
    LIMIT_REAL(run, max_gb, "GB",
               "the same after this traffic of the coordinator, up and down together, in 10^9 bytes; 0 or none: no "
               "limit"),

    LOCAL_TEXT(data, train, "", "training token shards: a path or glob"),
    LOCAL_TEXT(data, val, "", "validation token shards: a path or glob"),
    TEXT(data, tokenizer, "bytes", "bytes, none (tokens prepared elsewhere), or a tokenizer.json"),

    WORD(model, family, "gpt2", choices_family,
         "model family; external: the first worker's own program (libatoll, Python) defines the tensors"),
    TEXT(model, preset, "",
         "d2 to d48 (n_layer = n_head = depth, n_embd = 64 x depth), gpt2, llama-1b, llama-3b, llama-8b; explicit keys "
         "win"),
    U32(model, n_layer, "4", 1, 1024, "layers", "transformer blocks"),
    U32(model, n_head, "4", 1, 1024, "heads", "attention heads; must divide n_embd"),
    U32(model, n_embd, "128", 1, 65536, "", "width of the residual stream"),
    U32(model, block_size, "128", 1, 1048576, "tokens", "context length"),
    U32(model, vocab_size, "256", 2, 16777216, "tokens", "vocabulary size"),
    U32(model, n_kv_head, "0", 0, 1024, "heads",
        "llama: key and value heads (grouped-query attention); must divide n_head; 0: n_head"),
    U32(model, ffn, "0", 0, 1048576, "",
        "llama: width of the gated MLP; 0: 8/3 n_embd, rounded up to a multiple of 64"),
    REAL(model, rope_theta, "1e+04", 1, 1e12, "", "llama: base of the rotary positions"),
    TEXT(model, rope_scaling, "none", "llama: none, or llama3:FACTOR:LOW:HIGH:ORIGINAL (Llama 3.1 and later)"),
    REAL(model, norm_eps, "1e-05", 1e-12, 1, "", "llama: epsilon of RMSNorm, added to the mean square"),
    CHOICE(model, tie_embeddings, "on", choices_switch, "llama: use the token embedding as the output layer"),
    TEXT(model, init_from, "scratch",
         "scratch, or a Hugging Face folder on the coordinator's machine, which sets the keys of model that are not "
         "set"),

    CHOICE(train, method, "diloco", choices_method,
           "synchronization method; its outer.* and codec.* defaults replace values from weaker sources"),
    RAISE_U32(train, max_steps, "720", 1, U32_MAX, "steps", "inner optimizer steps of one worker"),
    U32(train, sync_every, "30", 1, 1000000, "steps", "H: inner steps between synchronizations; ddp: always 1"),
    U32(train, batch_size, "16", 1, 1048576, "sequences",
        "sequences per micro-step and worker; a worker may split a step otherwise"),
    U32(train, grad_accum, "1", 1, 65536, "micro-steps", "micro-steps per optimizer step"),
    CHOICE(train, precision, "fp32", choices_precision,
           "precision of the forward and backward pass; parameters stay fp32"),
    LOCAL_CHOICE(
        train, recompute, "auto", choices_recompute,
        "what the backward pass recomputes to save memory: activations, norms, blocks; auto: the least that fits"),
    LOCAL_U32(train, threads, "1", 1, 1024, "threads", "compute threads of one worker (CPU); at most 256 per rank"),
    LOCAL_U32(train, ranks, "1", 1, 1024, "ranks",
              "data-parallel ranks of one worker: one GPU each, or groups of threads; must divide batch_size"),
    LOCAL_TEXT(
        train, devices, "auto",
        "auto, cpu, cuda (the first train.ranks GPUs), or a list: cuda:0,1; atoll launch assigns them to workers"),
    START_TEXT(train, eval_every, "5",
               "rounds between evaluations, or inner steps of a worker such as \"100 steps\"; 0: only at the end"),
    START_U64(train, eval_tokens, "65536", 1, UINT64_MAX, "tokens",
              "validation tokens of a periodic evaluation; the final one uses all"),
    U32(train, fragments, "0", 0, 256, "fragments", "fragments of theta, each synchronized separately; 0: by size"),
    CHOICE(train, dynamic_steps, "auto", choices_auto,
           "adapt H of each worker to its speed, with a barrier around their mean; auto: on with async"),
    U32(train, overlap, "0", 0, 1000000, "steps",
        "inner steps that a worker trains between sending a delta and applying its update, at most H; default by "
        "train.method"),
    TEXT(train, apply, "replace",
         "how an update changes the trained parameters: replace (overlap 0), correct, or mix:ALPHA; default by "
         "train.method and overlap"),
    CHOICE(train, stagger, "off", choices_switch,
           "give groups of blocks sync points of their own, spread over H; default by train.method"),
    U32(train, start_step, "0", 0, U32_MAX, "steps",
        "rounds have one step before this one, and their outer step is the plain mean (post-local SGD)"),

    CHOICE(inner, optimizer, "adamw", choices_inner,
           "optimizer of each worker; muon: Muon for hidden matrices, AdamW for other tensors"),
    CHOICE(inner, moments, "fp32", choices_precision,
           "type of AdamW's and Muon's moments; bf16: half the memory, stochastic rounding"),
    RATE_REAL(inner, learning_rate, "1.5e-3", 0, 1000, "", "peak learning rate"),
    REAL(inner, beta1, "0.9", 0, 0.999999, "", "AdamW: decay of the first moment"),
    REAL(inner, beta2, "0.95", 0, 0.999999, "", "AdamW: decay of the second moment"),
    REAL(inner, eps, "1e-8", 1e-30, 1, "", "AdamW: added to the denominator"),
    REAL(inner, weight_decay, "0.1", 0, 100, "",
         "weight decay of tensors with two or more dimensions (all optimizers)"),
    REAL(inner, grad_clip, "1.0", 0, 1e9, "", "maximum global gradient norm; 0: off"),
    CHOICE(inner, schedule, "cosine", choices_schedule, "learning rate schedule after the warmup"),
    U32(inner, warmup_steps, "100", 0, U32_MAX, "steps", "linear warmup"),
    REAL(inner, min_lr_fraction, "0.1", 0, 1, "", "final learning rate as a fraction of learning_rate"),
    TEXT(inner, scaling, "none",
         "none, or sqrt, linear: multiply learning_rate by the (root of the) number of workers, by default "
         "coordinator.min_workers at the first start; sqrt:8 gives it"),

    CHOICE(outer, optimizer, "nesterov", choices_outer, "outer optimizer; default by train.method; adamw: ddp only"),
    RATE_REAL(outer, learning_rate, "0.7", 0, 1000, "",
              "default by optimizer: sgd 1, nesterov 0.7; ddp: inner.learning_rate"),
    RATE_REAL(outer, momentum, "0.9", 0, 0.999999, "", "default by optimizer: sgd 0, nesterov 0.9"),
    CHOICE(
        outer, state, "auto", choices_state,
        "type of the coordinator's momentum and residual; bf16: half the memory, stochastic rounding; auto: bf16 with "
        "method diloco and a lossy codec.down"),
    U32(outer, max_staleness, "4", 0, 1000000, "rounds",
        "async: maximum staleness (versions behind / active workers, rounded down)"),
    TEXT(outer, grace, "auto",
         "async: seconds in which arriving deltas become one outer step; auto: from measured arrivals; 0: off"),

    TEXT(codec, up, "int8:256", "codec of deltas (`atoll codec list`); ddp: fp32"),
    TEXT(codec, up_allowed, "",
         "codecs, separated by commas, that a worker may use instead of codec.up: atoll-worker --codec.up=SPEC"),
    TEXT(codec, down, "int8:256", "codec of updates, or relay, union, auto; ddp: fp32"),

    CHOICE(
        merge, rule, "mean", choices_rule,
        "average each value over all workers or over its senders, or rda: mean norm and mean direction of each tensor; "
        "default by codec.up: topk contributors"),
    CHOICE(merge, clip, "auto", choices_clip,
           "auto: with three workers and more, a tensor whose norm is far above the median over the workers is scaled "
           "down to it; median: each one above the median; off"),

    /* All local: a continued run may have more workers or another quorum. */
    LOCAL_TEXT(coordinator, listen, "tcp://127.0.0.1:29600", "address to listen on; port *: any free port"),
    LOCAL_TEXT(coordinator, advertise, "auto",
               "HOST or HOST:PORT in the join line, if NAT or a container hides this machine's address"),
    LOCAL_TEXT(coordinator, quorum, "all",
               "deltas that close a round: all, a number (all if fewer workers joined), or a percentage such as 75%"),
    LOCAL_U32(coordinator, min_workers, "1", 1, CONFIG_WORKERS_MAX, "workers",
              "workers that must join before the first round; async: the run takes max_steps for each of them"),
    LOCAL_U32(coordinator, max_workers, "64", 1, CONFIG_WORKERS_MAX, "workers",
              "maximum number of workers at one time"),
    LOCAL_U32(coordinator, threads, "0", 0, 256, "threads",
              "threads of the outer step; 0: one per core; no effect on results"),
    LOCAL_REAL(coordinator, evict_after_s, "0", 0, 1e9, "s",
               "silence after which a worker is evicted, at least 2 s; 0: 4 median rounds, at least 10 s"),

    START_U32(checkpoint, every, "10", 0, U32_MAX, "rounds", "rounds between checkpoints; 0: only at the end"),
    START_U32(checkpoint, keep, "2", 0, U32_MAX, "", "number of kept checkpoints; 0: all"),
    START_TEXT(checkpoint, worker_every, "1",
               "rounds between saves of a worker's state; auto: 1, and more if saves hold up rounds; 0: never"),

    LOCAL_WORD(log, level, "info", choices_level, "least severe level that is logged"),
};

const int config_keys_count = sizeof config_keys / sizeof *config_keys;

_Static_assert(sizeof config_keys / sizeof *config_keys <= CONFIG_KEYS_MAX, "config_sources has too few entries");

static bool same(const char *name, const char *text, size_t len)
{
    return strlen(name) == len && !memcmp(name, text, len);
}

bool config_key_of_run(int index)
{
    assert(index >= 0 && index < config_keys_count);
    return !config_keys[index].local && config_keys[index].change != CONFIG_AT_START;
}

bool config_key_of_worker(int index)
{
    assert(index >= 0 && index < config_keys_count);
    const struct config_key *k = &config_keys[index];
    return k->local && strcmp(k->section, "coordinator") != 0 && strcmp(k->section, "run") != 0;
}

int config_key_find(const char *section, size_t section_len, const char *key, size_t key_len)
{
    for (int i = 0; i < config_keys_count; i++)
        if (same(config_keys[i].section, section, section_len) && same(config_keys[i].key, key, key_len)) return i;
    return -1;
}

int config_key_at(size_t offset)
{
    for (int i = 0; i < config_keys_count; i++)
        if (config_keys[i].offset == offset) return i;
    assert(!"a field of struct config without a key");
    return -1;
}

bool config_section_exists(const char *section)
{
    for (int i = 0; i < config_keys_count; i++)
        if (!strcmp(config_keys[i].section, section)) return true;
    return false;
}

/* True when `text` is made of the first letters of the words of `name`: "lr" for "learning_rate". */
static bool initials(const char *text, const char *name)
{
    bool start = true;
    for (; *name; name++) {
        if (start && *text++ != *name) return false;
        start = *name == '_';
    }
    return !*text;
}

/* From 0 for equal names to 100 for names without a common letter. */
static int unlikeness(const char *text, const char *name)
{
    size_t a = strlen(text), b = strlen(name), longer = a > b ? a : b;
    if (strlen(text) > 1 && initials(text, name)) return 10;
    return longer ? 100 * text_distance(text, name) / (int)longer : 0;
}

int config_key_nearest(const char *section, const char *key)
{
    int nearest = 0, least = 1 << 20;
    for (int i = 0; i < config_keys_count; i++) {
        /* The key identifies more than its section: a wrong section costs a quarter of a wrong key. */
        int distance = 4 * unlikeness(key, config_keys[i].key) + unlikeness(section, config_keys[i].section);
        if (distance < least) {
            least = distance;
            nearest = i;
        }
    }
    return nearest;
}

const char *config_section_nearest(const char *section)
{
    int nearest = 0;
    for (int i = 1; i < config_keys_count; i++)
        if (unlikeness(section, config_keys[i].section) < unlikeness(section, config_keys[nearest].section))
            nearest = i;
    return config_keys[nearest].section;
}

/* --- removed keys ------------------------------------------------------------------------------------------------- */

const struct config_removed config_removed[] = {
    {"train", "eval_every_steps", "0", "write train.eval_every: N steps"},
    {"inner", "muon_momentum", "0.95", "it is 0.95: remove the key"},
    {"inner", "muon_steps", "5", "it is 5: remove the key"},
    {"inner", "scaling_workers", "0", "write inner.scaling: sqrt:WORKERS or linear:WORKERS"},
    {"outer", "buffer", "0", "it is the number of active workers: remove the key"},
    {"outer", "schedule", "constant", "the outer rate is constant: remove the key"},
    {"outer", "staleness_power", "0.5", "it is 0.5: remove the key"},
    {"codec", "error_feedback", "auto", "it is on with a lossy codec: remove the key"},
    {"merge", "weights", "tokens", "a worker weighs by its tokens: remove the key"},
    {"coordinator", "readmit_s", "3600",
     "it is an hour: remove the key; `atoll workers RUN --readmit NAME` ends the pause of a worker"},
    {"journal", "sync", "auto",
     "the journal is synced at each update if train.sync_every is above 1, else at checkpoints: remove the key"},
    {"log", "every_steps", "10", "a worker logs every tenth step: remove the key"},
    {"launch", "link", "", "write atoll launch --link SPEC"},
};
const int config_removed_count = sizeof config_removed / sizeof *config_removed;

const struct config_removed *config_removed_find(const char *section, size_t section_len, const char *key,
                                                 size_t key_len)
{
    for (int i = 0; i < config_removed_count; i++)
        if (same(config_removed[i].section, section, section_len) && same(config_removed[i].key, key, key_len))
            return &config_removed[i];
    return NULL;
}

bool config_removed_section(const char *section)
{
    for (int i = 0; i < config_removed_count; i++)
        if (!strcmp(config_removed[i].section, section)) return true;
    return false;
}

/* "3600" and "3.6e3" are one value. */
static bool equal_numbers(const char *a, const char *b)
{
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return *a && *b && !*end_a && !*end_b && x == y;
}

enum status config_removed_check(const struct config_removed *removed, const char *value, struct err *err)
{
    if (!strcmp(value, removed->same) || equal_numbers(value, removed->same)) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "%s.%s is no longer a key: %s", removed->section, removed->key,
                   removed->advice);
}
