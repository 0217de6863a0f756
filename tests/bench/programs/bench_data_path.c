/* The workers of `./run bench data-path`: they send noise through a real coordinator over CURVE, and read the CPU time
 * of its threads between the phases of a round.
 *
 * Usage: bench_data_path --join LINE --pid PID --workers N --rounds R --fragments F --params P --up SPEC
 *
 * Each fragment holds P parameters in one matrix. Phases of a round; in each the coordinator does one kind of work:
 * - "receive": all chunks of all deltas except each delta's last chunk;
 * - "deliver": the last chunks of all workers but one;
 * - "merge": the last chunks of the last worker: its deliveries, merge, outer step, encoding, journal;
 * - "down": all workers download all updates.
 *
 * Output, one JSON object: bytes up and down of a round, and for each phase the seconds of wall time and of CPU of the
 * measured round with the least in "main" (the first round warms up):
 * - "main": the main loop, and the threads of long calls: meanwhile the main loop only answers heartbeats;
 * - "pool": the other threads of merge and outer step;
 * - "io": ZeroMQ's I/O threads, which encrypt. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/options.h"
#include "compress/codec.h"
#include "wire/msg.h"
#include "wire/transport.h"

enum { WORKERS_MAX = 64, FRAGMENTS_MAX = 16, NOISES = 4, COLS = 1024, CHUNK = 256 << 10, BEAT_US = 1000000 };
enum { SETTLE_US = 30000, SETTLE_CPU_US = 1500, GIVE_UP_US = 60000000 };
enum phase { RECEIVE, DELIVER, MERGE, DOWN, PHASES };

/* Seconds. */
struct usage {
    double wall, main, pool, io;
};

struct delta {
    uint8_t *bytes;
    size_t size;
    uint32_t crc;
};

struct flow {
    uint64_t sent, upto, total, got;
};

struct worker {
    struct transport *transport;
    struct transport_worker self;
    uint64_t session, beat_us, echoed_us, config_hash;
    uint8_t state;
    bool bound;
    struct msg_assign task,
        next;                /* of this round; the newest, which may come before the round's updates are asked for */
    uint64_t begun, offered; /* rounds that it has begun; that the coordinator has assigned */
    uint64_t versions[FRAGMENTS_MAX];
    struct flow up[FRAGMENTS_MAX], down[FRAGMENTS_MAX];
};

struct bench {
    uint64_t pid, n, rounds, fragments, params;
    const char *join, *spec;
    bool relay;
    struct layout layout;
    uint8_t layout_bytes[1 << 16];
    size_t layout_size;
    struct delta deltas[NOISES][FRAGMENTS_MAX];
    struct worker workers[WORKERS_MAX];
    enum phase phase;
    uint8_t *buffer;
    struct usage used[PHASES];
    uint64_t bytes_up, bytes_down;
};

static struct bench b = {.rounds = 3, .fragments = 4, .params = 16 << 20, .n = 4};
static struct msg m;

static void die(const char *what)
{
    fprintf(stderr, "bench_data_path: %s\n", what);
    exit(EXIT_FAILED);
}

/* --- CPU time of the coordinator ---------------------------------------------------------------------------------- */

static double process_seconds(void)
{
    clockid_t id;
    struct timespec t;
    if (clock_getcpuclockid((pid_t)b.pid, &id) || clock_gettime(id, &t)) die("the coordinator ended");
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool read_task(const char *tid, const char *file, const char *format, void *out)
{
    char path[320];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/task/%s/%s", b.pid, tid, file);
    FILE *f = fopen(path, "r");
    bool ok = f && fscanf(f, format, out) == 1;
    if (f) fclose(f);
    return ok;
}

/* The totals so far. Threads of long calls have ended: the process counts them, no task does. */
static struct usage usage_now(void)
{
    char folder[64];
    struct usage u = {.wall = (double)clock_monotonic_us() * 1e-6};
    snprintf(folder, sizeof folder, "/proc/%" PRIu64 "/task", b.pid);
    DIR *dir = opendir(folder);
    if (!dir) die("the coordinator ended");
    for (struct dirent *entry; (entry = readdir(dir));) {
        uint64_t ns;
        char name[64];
        if (entry->d_name[0] == '.' || !read_task(entry->d_name, "schedstat", "%" SCNu64, &ns) ||
            !read_task(entry->d_name, "comm", "%63s", name))
            continue;
        if (!strncmp(name, "ZMQbg/IO", 8))
            u.io += (double)ns * 1e-9;
        else if (strtoull(entry->d_name, NULL, 10) != b.pid)
            u.pool += (double)ns * 1e-9;
    }
    closedir(dir);
    u.main = process_seconds() - u.io - u.pool;
    return u;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* False: the lane is full. */
static bool say(struct worker *w)
{
    size_t size;
    if (msg_encode(&m, b.buffer, WIRE_HEADER + WIRE_BODY_MAX, &size) != STATUS_OK) die("cannot encode a message");
    enum status status = w->transport->ops->send(w->transport, 0, msg_lane(m.type), b.buffer, size);
    if (status != STATUS_OK && status != STATUS_AGAIN) die("cannot send");
    return status == STATUS_OK;
}

static void say_hello(struct worker *w, uint64_t now_us)
{
    w->beat_us = now_us; /* lost before the key is enrolled: said again */
    m.type = MSG_HELLO;
    m.hello = (struct msg_hello){.software = "bench"};
    memcpy(m.hello.uuid, w->self.key.public_key, WIRE_UUID);
    memcpy(m.hello.name, w->self.name, sizeof m.hello.name);
    say(w);
}

static void say_join(struct worker *w)
{
    m.type = MSG_JOIN;
    m.join = (struct msg_join){.config_hash = w->config_hash,
                               .layout_hash = layout_hash(&b.layout),
                               .train_hash = 1,
                               .val_hash = 2,
                               .train_samples = 1000000,
                               .val_samples = 1000,
                               .sample_tokens = 16,
                               .ranks = 1,
                               .layout = b.layout_bytes,
                               .layout_size = b.layout_size,
                               .model_config = "{\"model_type\": \"gpt2\"}",
                               .round = UINT64_MAX};
    memcpy(m.join.uuid, w->self.key.public_key, WIRE_UUID);
    memcpy(m.join.name, w->self.name, sizeof m.join.name);
    say(w);
}

static void say_beat(struct worker *w, uint64_t now_us)
{
    m.type = MSG_HEARTBEAT;
    m.heartbeat = (struct msg_heartbeat){.session = w->session,
                                         .sent_us = now_us,
                                         .state = w->state,
                                         .round = w->state == WORKER_SENDING ? w->task.round : UINT64_MAX,
                                         .n_fragments = (uint32_t)b.fragments};
    memcpy(m.heartbeat.versions, w->versions, b.fragments * sizeof *w->versions);
    w->beat_us = now_us;
    say(w);
}

static const struct delta *delta_of(const struct worker *w, uint32_t f)
{
    return &b.deltas[(size_t)(w - b.workers) % NOISES][f];
}

static void say_offer(struct worker *w, uint32_t f)
{
    const struct delta *d = delta_of(w, f);
    m.type = MSG_OFFER;
    m.offer = (struct msg_offer){.session = w->session,
                                 .round = w->task.round,
                                 .fragment = f,
                                 .form = DELTA_PSEUDO_GRADIENT,
                                 .base_version = w->task.versions[f],
                                 .bytes = d->size,
                                 .crc = d->crc,
                                 .tokens = (uint64_t)w->task.steps * 16,
                                 .steps = w->task.steps,
                                 .loss_sum = 10,
                                 .norm = 1,
                                 .compute_us = 5000};
    w->up[f] = (struct flow){.total = d->size};
    say(w);
}

/* Sends the next chunk of a fragment if its phase and the credit allow. False: it cannot. */
static bool say_chunk(struct worker *w, uint32_t f)
{
    const struct delta *d = delta_of(w, f);
    struct flow *up = &w->up[f];
    size_t size = up->total - up->sent < CHUNK ? up->total - up->sent : CHUNK;
    bool last = up->sent + size == up->total, final = w == &b.workers[b.n - 1];
    if (!size || up->sent + size > up->upto || (last && b.phase < (final ? MERGE : DELIVER))) return false;
    m.type = MSG_CHUNK;
    m.chunk = (struct msg_chunk){.kind = OBJECT_DELTA,
                                 .fragment = f,
                                 .key = w->task.round,
                                 .offset = up->sent,
                                 .total = up->total,
                                 .crc = crc32c(0, d->bytes + up->sent, size),
                                 .data = d->bytes + up->sent,
                                 .size = size};
    if (!say(w)) return false;
    up->sent += size;
    return true;
}

static void on_message(struct worker *w)
{
    switch (m.type) {
    case MSG_CONFIG:
        if (w->config_hash) break;
        w->config_hash = m.config.config_hash;
        say_join(w);
        break;
    case MSG_WELCOME:
        w->session = m.welcome.session;
        m.type = MSG_BIND;
        m.bind = (struct msg_bind){.session = w->session};
        say(w);
        w->bound = true;
        w->state = WORKER_READY;
        say_beat(w, clock_monotonic_us());
        break;
    case MSG_ASSIGN:
        w->next = m.assign;
        w->offered = m.assign.round + 1;
        break;
    case MSG_CREDIT:
        w->up[m.credit.fragment].upto = m.credit.upto;
        w->up[m.credit.fragment].got = m.credit.have;
        break;
    case MSG_CHUNK:
        w->down[m.chunk.fragment].total = m.chunk.total;
        w->down[m.chunk.fragment].got += m.chunk.size;
        break;
    case MSG_HEARTBEAT_ACK:
        if (m.heartbeat_ack.sent_us > w->echoed_us) w->echoed_us = m.heartbeat_ack.sent_us;
        break;
    case MSG_REFUSE: die(m.refuse.text); break;
    case MSG_REJECT: die(m.reject.text); break;
    default: break;
    }
}

/* Reads and sends until nothing moves. True: something moved. */
static bool pump(void)
{
    bool moved = false;
    for (uint64_t i = 0; i < b.n; i++) {
        struct worker *w = &b.workers[i];
        uint64_t peer, now_us = clock_monotonic_us();
        enum wire_lane lane;
        const uint8_t *data;
        size_t size;
        struct err err = {0};
        for (int k = 0; k < 16 && w->transport->ops->recv(w->transport, 0, &peer, &lane, &data, &size) == STATUS_OK;
             k++) {
            if (msg_decode(&m, data, size, &err) != STATUS_OK) die(err.msg);
            on_message(w);
            moved = true;
        }
        if (now_us - w->beat_us > BEAT_US && w->bound) say_beat(w, now_us);
        if (now_us - w->beat_us > BEAT_US && !w->bound) say_hello(w, now_us);
        for (uint32_t f = 0; w->state == WORKER_SENDING && f < b.fragments; f++)
            while (say_chunk(w, f)) moved = true;
    }
    return moved;
}

static void wait_until(bool (*done)(const struct worker *w), const char *what)
{
    uint64_t since = clock_monotonic_us();
    for (uint64_t i = 0; i < b.n;) {
        if (done(&b.workers[i])) {
            i++;
            continue;
        }
        if (!pump()) usleep(200);
        if (clock_monotonic_us() - since > GIVE_UP_US) die(what);
    }
}

/* Waits until the coordinator computes no more. */
static void settle(void)
{
    for (;;) {
        double from = process_seconds();
        for (uint64_t since = clock_monotonic_us(); clock_monotonic_us() - since < SETTLE_US;)
            if (!pump()) usleep(200);
        if ((process_seconds() - from) * 1e6 < SETTLE_CPU_US) return;
    }
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

static bool is_bound(const struct worker *w)
{
    return w->bound;
}

static bool is_assigned(const struct worker *w)
{
    return w->offered > w->begun;
}

static bool has_credit(const struct worker *w)
{
    for (uint64_t f = 0; f < b.fragments; f++)
        if (!w->up[f].upto) return false;
    return true;
}

static bool sent_most(const struct worker *w)
{
    for (uint64_t f = 0; f < b.fragments; f++)
        if (w->up[f].sent < (w->up[f].total - 1) / CHUNK * CHUNK) return false;
    return true;
}

static bool delivered(const struct worker *w)
{
    bool waits = b.phase == DELIVER && w == &b.workers[b.n - 1];
    for (uint64_t f = 0; f < b.fragments && !waits; f++)
        if (w->up[f].got < w->up[f].total) return false;
    return true;
}

static bool echoed(const struct worker *w)
{
    return w->echoed_us >= w->beat_us;
}

static bool downloaded(const struct worker *w)
{
    for (uint32_t f = 0; f < b.fragments; f++) {
        uint64_t own = b.relay ? delta_of(w, f)->size : 0;
        if (!w->down[f].total || w->down[f].got + own < w->down[f].total) return false;
    }
    return true;
}

static void end_phase(enum phase phase, struct usage *from, bool counts)
{
    for (uint64_t i = 0; i < b.n; i++) say_beat(&b.workers[i], clock_monotonic_us());
    wait_until(echoed, "no answer to a heartbeat");
    double wall = (double)clock_monotonic_us() * 1e-6;
    settle();
    struct usage to = usage_now(), *used = &b.used[phase];
    struct usage now = {wall - from->wall, to.main - from->main, to.pool - from->pool, to.io - from->io};
    if (counts && (!(used->wall > 0) || now.main < used->main)) *used = now;
    *from = usage_now();
}

static void run_round(bool counts)
{
    struct usage from;
    b.phase = RECEIVE;
    wait_until(is_assigned, "no assignment");
    settle();
    from = usage_now();
    for (uint64_t i = 0; i < b.n; i++) {
        struct worker *w = &b.workers[i];
        w->task = w->next;
        w->begun = w->offered;
        w->state = WORKER_SENDING;
        for (uint32_t f = 0; f < b.fragments; f++) say_offer(w, f);
    }
    wait_until(has_credit, "no credit");
    wait_until(sent_most, "the coordinator takes no chunks");
    end_phase(RECEIVE, &from, counts);
    for (b.phase = DELIVER; b.phase < DOWN; b.phase++) {
        wait_until(delivered, "a delta was not delivered");
        end_phase(b.phase, &from, counts);
    }
    for (uint64_t i = 0; i < b.n; i++) {
        struct worker *w = &b.workers[i];
        for (uint32_t f = 0; f < b.fragments; f++) {
            w->down[f] = (struct flow){0};
            m.type = MSG_GET;
            m.get = (struct msg_get){.session = w->session,
                                     .kind = OBJECT_UPDATE,
                                     .fragment = f,
                                     .version = w->task.versions[f] + 1,
                                     .length = UINT64_MAX};
            say(w);
        }
    }
    wait_until(downloaded, "an update did not arrive");
    end_phase(DOWN, &from, counts);
    b.bytes_up = b.bytes_down = 0;
    for (uint64_t i = 0; i < b.n; i++) {
        struct worker *w = &b.workers[i];
        for (uint32_t f = 0; f < b.fragments; f++) {
            b.bytes_up += w->up[f].total;
            b.bytes_down += w->down[f].got;
            w->versions[f] = w->task.versions[f] + 1;
            w->up[f] = (struct flow){0};
        }
        w->state = WORKER_READY;
    }
    for (uint64_t i = 0; i < b.n; i++) say_beat(&b.workers[i], clock_monotonic_us());
}

/* --- setup -------------------------------------------------------------------------------------------------------- */

static void make_deltas(void)
{
    uint64_t shape[2] = {b.params / COLS, COLS};
    struct writer w = writer_of(b.layout_bytes, sizeof b.layout_bytes);
    float *noise = mem_alloc(b.params, sizeof *noise);
    struct codec *codec;
    struct err err = {0};
    layout_init(&b.layout);
    for (uint32_t f = 0; f < b.fragments; f++) {
        char name[24];
        snprintf(name, sizeof name, "tensor.%u", f);
        if (layout_add(&b.layout, name, 2, shape, LAYOUT_INIT_NORMAL, 0.5f, LAYOUT_DECAY)) die("no memory");
    }
    if (!noise || layout_split(&b.layout, (uint32_t)b.fragments)) die("no memory");
    layout_encode(&b.layout, &w);
    b.layout_size = w.pos;
    for (uint32_t i = 0; i < NOISES && i < b.n; i++)
        for (uint32_t f = 0; f < b.fragments; f++) {
            struct delta *d = &b.deltas[i][f];
            if (codec_create_for_fragment(&codec, b.spec, &b.layout, f, &err)) die(err.msg);
            rng_normal_fill(1 + i, RNG_TEST, f * b.params, 1e-3f, noise, b.params);
            d->bytes = mem_alloc(1, codec_bound(codec));
            if (!d->bytes || codec_encode(codec, noise, d->bytes, codec_bound(codec), &d->size, NULL))
                die("cannot encode a delta");
            d->crc = crc32c(0, d->bytes, d->size);
            codec_destroy(codec);
        }
    mem_free(noise);
}

static void join(void)
{
    struct transport_address address;
    struct err err = {0};
    if (transport_address_parse(&address, b.join, &err)) die(err.msg);
    for (uint64_t i = 0; i < b.n; i++) {
        struct worker *w = &b.workers[i];
        w->self.fresh = true;
        snprintf(w->self.name, sizeof w->self.name, "worker-%02u", (unsigned)i);
        if (transport_key_make(&w->self.key, &err) || transport_zmq_dial(&w->transport, &address, &w->self, &err))
            die(err.msg);
    }
    wait_until(is_bound, "the coordinator does not answer");
}

static void report(void)
{
    static const char *const names[PHASES] = {"receive", "deliver", "merge", "down"};
    printf("{\"bytes_up\": %" PRIu64 ", \"bytes_down\": %" PRIu64, b.bytes_up, b.bytes_down);
    for (int p = 0; p < PHASES; p++)
        printf(", \"%s\": {\"wall\": %.4f, \"main\": %.4f, \"pool\": %.4f, \"io\": %.4f}", names[p], b.used[p].wall,
               b.used[p].main, b.used[p].pool, b.used[p].io);
    printf("}\n");
}

static enum status parse(int argc, char **argv, struct err *err)
{
    const struct option_spec specs[] = {
        {"join", OPTION_TEXT, &b.join, "LINE", "the coordinator's join line"},
        {"pid", OPTION_COUNT, &b.pid, "PID", "the coordinator's process"},
        {"workers", OPTION_COUNT, &b.n, "N", "workers (4)"},
        {"rounds", OPTION_COUNT, &b.rounds, "R", "measured rounds, after one (3)"},
        {"fragments", OPTION_COUNT, &b.fragments, "F", "fragments (4)"},
        {"params", OPTION_COUNT, &b.params, "P", "parameters of a fragment, a multiple of 1,024 (16 Mi)"},
        {"up", OPTION_TEXT, &b.spec, "SPEC", "codec.up of the run"},
        {"relay", OPTION_FLAG, &b.relay, NULL, "codec.down is relay: the coordinator leaves out a worker's own delta"},
    };
    struct options options = {.program = "bench_data_path",
                              .usage = "[options]",
                              .specs = specs,
                              .about = "Workers that send noise; see tests/bench/data-path.",
                              .n_specs = sizeof specs / sizeof *specs};
    TRY(options_parse(&options, argc, argv, err));
    if (!b.join || !b.pid || !b.spec) return err_set(err, STATUS_INVALID, "--join, --pid and --up are required");
    if (!b.n || b.n > WORKERS_MAX || !b.fragments || b.fragments > FRAGMENTS_MAX || !b.params || b.params % COLS)
        return err_set(err, STATUS_INVALID, "--workers, --fragments or --params is out of range");
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    enum status status = parse(argc, argv, &err);
    if (status != STATUS_OK) return status == STATUS_END ? EXIT_DONE : options_fail("bench_data_path", &err);
    b.buffer = mem_alloc(1, WIRE_HEADER + WIRE_BODY_MAX);
    if (!b.buffer) die("no memory");
    make_deltas();
    join();
    for (uint64_t r = 0; r <= b.rounds; r++) run_round(r > 0);
    report();
    for (uint64_t i = 0; i < b.n; i++) b.workers[i].transport->ops->close(b.workers[i].transport);
    return EXIT_DONE;
}
