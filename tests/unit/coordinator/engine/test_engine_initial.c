/* The upload of the initial model (model.family external): losses, take-overs, hostile uploads, and tensors that are
 * not exchanged: workers must agree on them, and the upload brings their values. */
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/initial.h"
#include "worker/outer/outer_initial.h"

static struct rig rig;
static float theta[RIG_PARAMS];
static uint8_t object[1 << 16];
static size_t object_size;

static const struct outer_file files[] = {{"config.json", "{\"model_type\": \"mine\"}", 22},
                                          {"tokenizer.json", "{\"model\": {}}", 13}};

/* The bytes that a worker sends for this layout. */
static void make_object(struct outer_model model, size_t step)
{
    struct outer_initial *initial;
    struct err err = {0};
    model.layout = &rig.layout;
    model.initial = theta;
    rng_normal_fill(7, RNG_TEST, 0, 1.0f, theta, RIG_PARAMS);
    if (outer_initial_open(&initial, &model, &err) != STATUS_OK) fail_msg("%s", err.msg);
    object_size = outer_initial_total(initial);
    assert_true(object_size <= sizeof object);
    for (size_t at = 0; at < object_size; at += step) {
        size_t n = object_size - at < step ? object_size - at : step;
        const uint8_t *bytes = outer_initial_read(initial, at, n, &err);
        assert_non_null(bytes);
        memcpy(object + at, bytes, n);
    }
    outer_initial_close(initial);
}

static void make_plain_object(void)
{
    make_object((struct outer_model){.files = files, .n_files = 2}, 1000);
}

static bool find_peer(void *ctx, uint64_t peer, struct engine_peer *out)
{
    (void)ctx;
    return rig_find_worker(&rig, peer, out);
}

static void open_run(void)
{
    static const char *const settings[] = {"model.family=external", "coordinator.min_workers=1", NULL};
    static const struct rig_access access = {.peer = find_peer};
    rig_access = &access;
    rig_open(&rig, settings);
    store_mem_keep_init(rig.store, tmpdir);
    for (int i = 0; i < RIG_WORKERS; i++) rig.workers[i].blind = true;
    make_plain_object();
}

static void close_run(void)
{
    if (file_exists(tmpdir_path("init"))) tmpdir_clear(tmpdir_path("init"));
    rig_close(&rig);
    rig_access = NULL;
}

/* The newest UPLOAD to this worker. */
static struct msg_upload uploads(int worker)
{
    struct msg m, next;
    rig_expect(&rig, worker, MSG_UPLOAD, &m);
    while (rig_take(&rig, worker, MSG_UPLOAD, &next)) m = next;
    return m.upload;
}

static void send_bytes(uint64_t peer, uint64_t id, size_t offset, size_t n)
{
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_INITIAL,
                              .key = id,
                              .offset = offset,
                              .total = object_size,
                              .data = object + offset,
                              .size = n,
                              .crc = crc32c(0, object + offset, n)}};
    rig_say(&rig, peer, &m);
}

static void send_all(int worker, uint64_t id, size_t from, size_t step)
{
    for (size_t at = from; at < object_size; at += step)
        send_bytes(rig.workers[worker].bulk, id, at, object_size - at < step ? object_size - at : step);
}

static void expect_theta(void)
{
    const float *run = engine_theta(rig.engine);
    assert_non_null(run);
    assert_memory_equal(run, theta, sizeof theta);
}

static bool exists(const char *name)
{
    return file_exists(tmpdir_path(name));
}

/* Lost, repeated and reordered chunks; a repeated JOIN says where to go on. */
TEST(test_upload_survives_losses)
{
    enum { STEP = 600 };
    struct msg m;
    open_run();
    rig_say_join(&rig, 0);
    struct msg_upload u = uploads(0);
    uint64_t have = 0;
    for (int i = 0; have < object_size; i++) {
        size_t left = object_size - have, n = left < STEP ? left : STEP;
        bool lost = rng_u64(3, RNG_TEST, (uint64_t)i) % 3 == 0;
        if (!lost) send_bytes(rig.workers[0].bulk, u.upload, have, n);
        if (have + n < object_size) /* the one after it, and the one before */
            send_bytes(rig.workers[0].bulk, u.upload, have + 2 * n < object_size ? have + 2 * n : object_size - 1, 1);
        if (have) send_bytes(rig.workers[0].bulk, u.upload, 0, have < STEP ? have : STEP);
        if (!lost && left <= STEP) break;
        if (lost) rig_wait(&rig, 4000000);
        rig_join_message(&rig, 0, false, &m);
        rig_say(&rig, rig.workers[0].control, &m);
        struct msg_upload now = uploads(0);
        assert_true(now.upload == u.upload && now.have == (lost ? have : have + n));
        have = now.have;
    }
    rig_expect(&rig, 0, MSG_WELCOME, &m);
    expect_theta();
    close_run();
}

TEST(test_restart_begins_upload_again)
{
    open_run();
    rig_say_join(&rig, 0);
    struct msg_upload u = uploads(0), again;
    send_bytes(rig.workers[0].bulk, u.upload, 0, 500);
    assert_true(exists("init.tmp"));
    rig_restart(&rig, true, 1);
    assert_false(exists("init.tmp"));
    send_bytes(rig.workers[0].bulk, u.upload, 500, 100); /* nothing listens to the old upload */
    rig_say_join(&rig, 0);
    again = uploads(0);
    assert_true(again.upload != u.upload && !again.have);
    send_all(0, again.upload, 0, 1000);
    expect_theta();
    close_run();
}

/* The coordinator ends between the rename of RUN/init and the journal's record: the folder is used. */
TEST(test_folder_without_record_is_used)
{
    struct msg m;
    open_run();
    rig_say_join(&rig, 0);
    send_all(0, uploads(0).upload, 0, 1000);
    struct store *fresh;
    engine_destroy(rig.engine);
    store_mem_destroy(rig.store);
    assert_int_equal(store_mem_create(&fresh), STATUS_OK);
    store_mem_keep_init(fresh, tmpdir);
    rig.store = fresh;
    struct err err = {0};
    assert_int_equal(rig_start(&rig, &err), STATUS_OK);
    rig_forget(&rig);
    rig_say_join(&rig, 1);
    rig_expect(&rig, 1, MSG_WELCOME, &m);
    expect_theta();
    close_run();
}

TEST(test_other_worker_waits_and_takes_over)
{
    for (int closed = 0; closed < 2; closed++) {
        open_run();
        rig_say_join(&rig, 0);
        struct msg_upload first = uploads(0), u;
        send_bytes(rig.workers[0].bulk, first.upload, 0, 500);
        rig_say_join(&rig, 1);
        u = uploads(1);
        assert_true(!u.upload && strstr(u.text, "the initial model, which worker-0 uploads (500 B of "));
        send_bytes(rig.workers[1].bulk, 0, 0, 1000);             /* it may not upload */
        send_bytes(rig.workers[1].bulk, first.upload, 500, 100); /* nor with the key of the first */
        rig_say_join(&rig, 1);
        assert_non_null(strstr(uploads(1).text, "(500 B of "));
        if (closed)
            rig.closed_peer = rig.workers[0].control;
        else
            rig_wait(&rig, 31000000);
        rig_say_join(&rig, 1);
        u = uploads(1);
        assert_true(u.upload && u.upload != first.upload && !u.have);
        send_all(0, first.upload, 500, 100); /* the first one comes back: its bytes count no more */
        rig.closed_peer = UINT64_MAX;
        rig_say_join(&rig, 0);
        assert_true(!uploads(0).upload);
        send_all(1, u.upload, 0, 1000);
        expect_theta();
        rig_say_join(&rig, 0);
        struct msg m;
        rig_expect(&rig, 0, MSG_WELCOME, &m);
        close_run();
    }
}

/* --- hostile uploads ---------------------------------------------------------------------------------------------- */

/* Sends this head and, if it is taken, bytes. */
static void upload_head(const struct initial_head *head)
{
    rig_say_join(&rig, 0);
    struct msg_upload u = uploads(0);
    memset(object, 'x', sizeof object);
    size_t n = initial_head_encode(head, object);
    object_size = initial_total(head);
    send_bytes(rig.workers[0].bulk, u.upload, 0, n + 1);
}

TEST(test_hostile_heads_are_refused)
{
    static const struct {
        const char *names[2];
        uint64_t sizes[2];
        const char *why;
    } cases[] = {
        {{"model.safetensors", "../../key"}, {10, 10}, "a name that no model folder has"},
        {{"model.safetensors", "modeling_evil.py"}, {10, 10}, "a name that no model folder has"},
        {{"model.safetensors", "init/config.json"}, {10, 10}, "a name that no model folder has"},
        {{"model.safetensors", ".."}, {10, 10}, "a name that no model folder has"},
        {{"model.safetensors", "model.safetensors"}, {10, 10}, "one name twice"},
        {{"config.json", "tokenizer.json"}, {10, 10}, "has no model.safetensors"},
        {{"model.safetensors", "config.json"}, {0, 10}, "a wrong size"},
        {{"model.safetensors", "config.json"}, {UINT64_MAX - 1000, 10}, "a wrong size"},
        {{"model.safetensors", "config.json"}, {10, (128 << 20) + 1}, "do not fit its layout"},
        {{"model.safetensors", "config.json"}, {1 << 20, 10}, "do not fit its layout"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct initial_head head = {.n_files = 2};
        open_run();
        for (int k = 0; k < 2; k++) {
            snprintf(head.files[k].name, sizeof head.files[k].name, "%s", cases[i].names[k]);
            head.files[k].size = cases[i].sizes[k];
        }
        upload_head(&head);
        rig_refused(&rig, 0, REFUSE_LAYOUT, cases[i].why);
        make_plain_object(); /* the next worker may try */
        rig_say_join(&rig, 1);
        send_all(1, uploads(1).upload, 0, 1000);
        expect_theta();
        close_run();
    }
}

/* Whole uploads that do not hold the layout's tensors, or NaN. */
TEST(test_false_models_are_refused)
{
    for (int lie = 0; lie < 3; lie++) {
        open_run();
        rig_say_join(&rig, 0);
        struct msg_upload u = uploads(0);
        const char *json = lie == 1 ? "\"shape\":[8,4]" : "tensor_0";
        uint8_t *at = memmem(object, object_size, json, strlen(json));
        assert_non_null(at);
        if (lie == 0) at[7] = '9'; /* tensor_9 */
        if (lie == 1) memcpy(at, "\"shape\":[4,8]", strlen(json));
        if (lie == 2) memset(object + object_size - 4, 0xff, 4); /* NaN */
        send_all(0, u.upload, 0, 1000);
        rig_refused(&rig, 0, REFUSE_LAYOUT, lie == 2 ? "NaN or infinity" : lie ? "has shape" : "tensor_9");
        assert_false(exists("init"));
        assert_null(engine_theta(rig.engine));
        make_plain_object();
        rig_say_join(&rig, 1);
        send_all(1, uploads(1).upload, 0, 1000);
        expect_theta();
        close_run();
    }
}

/* --- tensors that are not exchanged ------------------------------------------------------------------------------- */

enum { N = 3, BYTES_B = 600 };

static uint8_t values[BYTES_B];

static const struct frozen_tensor base[N] = {
    {.name = "base.bias", .dtype = "I64", .ndim = 0, .bytes = 8, .hash = 1},
    {.name = "base.empty", .dtype = "F32", .ndim = 1, .shape = {0}, .bytes = 0, .hash = 2},
    {.name = "base.weight", .dtype = "BF16", .ndim = 2, .shape = {30, 10}, .bytes = BYTES_B, .hash = 3}};

/* One worker's list, as JOIN carries it. */
struct side {
    struct frozen_tensor t[N];
    struct frozen list;
    uint8_t bytes[1024];
    size_t size;
    bool any, whole;
};

static void encode(struct side *s)
{
    struct writer w = writer_of(s->bytes, sizeof s->bytes);
    s->list.tensors = s->t;
    frozen_encode(&s->list, &w);
    assert_false(w.bad);
    s->size = w.pos;
}

static void side_init(struct side *s, uint32_t n)
{
    *s = (struct side){.list.n = n};
    memcpy(s->t, base, sizeof base);
    encode(s);
}

static void say_join(int worker, const struct side *s)
{
    struct msg m;
    rig_hello(&rig, worker);
    rig_expect(&rig, worker, MSG_CONFIG, &m);
    rig_join_message(&rig, worker, false, &m);
    m.join.frozen = s->bytes;
    m.join.frozen_size = s->size;
    m.join.frozen_any = s->any;
    m.join.frozen_whole = s->whole;
    rig_say(&rig, rig.workers[worker].control, &m);
}

static void expect_welcome(int worker, const struct side *s)
{
    struct msg m;
    say_join(worker, s);
    rig_expect(&rig, worker, MSG_WELCOME, &m);
}

static void refuse_join(int worker, const struct side *s, const char *words)
{
    say_join(worker, s);
    rig_refused(&rig, worker, REFUSE_LAYOUT, words);
}

TEST(test_other_base_is_refused)
{
    struct side run, other;
    rig_open(&rig, NULL);
    side_init(&run, N);
    side_init(&other, N);
    expect_welcome(0, &run);
    for (int restarted = 0; restarted < 3; restarted++) { /* the journal and the checkpoint hold the list */
        side_init(&other, N);
        other.t[2].hash = 4;
        encode(&other);
        refuse_join(1, &other,
                    "the base model of 'worker-1' differs from the run's: frozen tensor 'base.weight' has other "
                    "values: use the same base model as the other workers; frozen=\"any\" allows another "
                    "quantization of it");
        other.t[2].dtype[0] = 'X';
        encode(&other);
        refuse_join(1, &other, "frozen tensor 'base.weight' has dtype XF16 instead of BF16");
        side_init(&other, 1);
        refuse_join(1, &other, "frozen tensor 'base.empty' of the run is missing here");
        side_init(&other, 0);
        refuse_join(1, &other, "frozen tensor 'base.bias' of the run is missing here");
        other.size = 3;
        refuse_join(1, &other, "its list of frozen tensors is malformed");
        side_init(&other, 1);
        other.any = true;
        expect_welcome(2, &other);
        expect_welcome(1, &run);
        rig_restart(&rig, restarted == 0, 1);
    }
    rig_close(&rig);
}

TEST(test_run_without_frozen_tensors_takes_none)
{
    struct side none, some;
    rig_open(&rig, NULL);
    side_init(&none, 0);
    side_init(&some, N);
    expect_welcome(0, &none);
    refuse_join(1, &some, "frozen tensor 'base.bias' is missing in the run");
    rig.engine->ledger.model.frozen = NULL; /* as a record of an older release: nothing is compared */
    expect_welcome(1, &some);
    rig_close(&rig);
}

TEST(test_malformed_first_list_is_refused)
{
    struct side bad;
    rig_open(&rig, NULL);
    side_init(&bad, N);
    bad.size--;
    say_join(0, &bad);
    rig_refused(&rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    side_init(&bad, N);
    snprintf(bad.t[2].name, sizeof bad.t[2].name, "%s", rig.layout.tensors[0].name);
    encode(&bad);
    say_join(0, &bad);
    rig_refused(&rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    side_init(&bad, N);
    bad.t[2].bytes = UINT64_MAX;
    encode(&bad);
    say_join(0, &bad);
    rig_refused(&rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    assert_null(engine_theta(rig.engine));
    rig_close(&rig);
}

static int read_values(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size)
{
    (void)ctx;
    assert_true(i < N && size && offset + size <= base[i].bytes);
    memcpy(out, values + offset, size);
    return 0;
}

static int fail_to_read(void *ctx, uint32_t i, uint64_t offset, void *out, size_t size)
{
    (void)ctx, (void)out, (void)size;
    return i == 2 && offset ? -1 : 0;
}

/* The object of a worker with this list. */
static void make_object_of(const struct side *s, size_t step)
{
    for (size_t i = 0; i < BYTES_B; i++) values[i] = (uint8_t)(3 * i);
    make_object((struct outer_model){.frozen = &s->list, .frozen_read = s->whole ? read_values : NULL}, step);
}

static void expect_uploaded(void)
{
    struct safetensors st;
    struct err err = {0};
    expect_theta();
    if (safetensors_open(&st, tmpdir_path("init/frozen.safetensors"), &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(st.n, N);
    const struct safetensors_entry *e = safetensors_find(&st, "base.weight");
    assert_true(e && e->bytes == BYTES_B && !strcmp(e->dtype, "BF16") && !memcmp(e->data, values, BYTES_B));
    safetensors_close(&st);
}

/* Reads at any offset give the same bytes. */
TEST(test_upload_brings_frozen_tensors)
{
    static const size_t steps[] = {1000, 37, 1};
    struct side s;
    struct msg m;
    for (size_t i = 0; i < 3; i++) {
        open_run();
        side_init(&s, N);
        s.whole = true;
        make_object_of(&s, steps[i]);
        say_join(0, &s);
        send_all(0, uploads(0).upload, 0, 1000);
        rig_expect(&rig, 0, MSG_WELCOME, &m);
        expect_uploaded();
        rig_restart(&rig, true, 1);
        s.whole = false; /* it comes second: nobody asks for its values */
        expect_welcome(1, &s);
        close_run();
    }
}

TEST(test_program_that_cannot_read_uploads_nothing)
{
    struct side s;
    struct outer_initial *initial;
    struct err err = {0};
    open_run();
    side_init(&s, N);
    struct outer_model model = {
        .layout = &rig.layout, .initial = theta, .frozen = &s.list, .frozen_read = fail_to_read};
    assert_int_equal(outer_initial_open(&initial, &model, &err), STATUS_OK);
    uint64_t total = outer_initial_total(initial);
    assert_null(outer_initial_read(initial, total - 1, 1, &err));
    assert_non_null(strstr(err.msg, "cannot read the frozen tensor 'base.weight'"));
    assert_non_null(outer_initial_read(initial, 0, 1, &err));
    outer_initial_close(initial);
    close_run();
}

/* The uploader's list changed: its program was started again with another base. */
TEST(test_other_list_begins_upload_again)
{
    struct side s;
    open_run();
    side_init(&s, N);
    s.whole = true;
    say_join(0, &s);
    uint64_t first = uploads(0).upload;
    say_join(0, &s);
    assert_true(uploads(0).upload == first);
    s.t[0].hash = 99;
    encode(&s);
    say_join(0, &s);
    assert_true(uploads(0).upload != first);
    close_run();
}

/* lie 0: no file; 1: a file that JOIN did not announce; 2: another tensor; 3: more tensors. */
TEST(test_false_frozen_files_are_refused)
{
    for (int lie = 0; lie < 4; lie++) {
        struct side told, sent;
        open_run();
        side_init(&told, N);
        side_init(&sent, N);
        sent.whole = lie != 0;
        make_object_of(&sent, 1000);
        if (lie == 2) memcpy(memmem(object, object_size, "base.weight", 11), "case", 4);
        if (lie == 3) side_init(&told, 1);
        told.whole = lie != 1;
        say_join(0, &told);
        send_all(0, uploads(0).upload, 0, 1000);
        rig_refused(&rig, 0, REFUSE_LAYOUT,
                    lie < 2    ? "the sizes of its files do not fit its layout"
                    : lie == 2 ? "tensor 'case.weight' is not one of the worker's list"
                               : "frozen.safetensors has 3 tensors instead of 1");
        assert_false(file_exists(tmpdir_path("init")));
        assert_null(engine_theta(rig.engine));
        side_init(&told, N); /* the next worker may try */
        told.whole = true;
        make_object_of(&told, 1000);
        say_join(1, &told);
        send_all(1, uploads(1).upload, 0, 1000);
        expect_uploaded();
        close_run();
    }
}

/* The first chunk of an upload with these sizes. */
static void send_head(uint64_t id, uint64_t model, uint64_t frozen)
{
    struct initial_head head = {.n_files = 2, .files = {{INITIAL_MODEL, model}, {INITIAL_FROZEN, frozen}}};
    initial_head_encode(&head, object);
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_INITIAL,
                              .key = id,
                              .total = initial_total(&head),
                              .data = object,
                              .size = 200,
                              .crc = crc32c(0, object, 200)}};
    rig_say(&rig, rig.workers[0].bulk, &m);
}

TEST(test_frozen_file_is_limited_by_its_list)
{
    struct side s;
    open_run();
    side_init(&s, N);
    s.whole = true;
    say_join(0, &s);
    uint64_t id = uploads(0).upload;
    send_head(id, 100, frozen_file_most(&s.list) + 1);
    rig_refused(&rig, 0, REFUSE_LAYOUT, "the sizes of its files do not fit its layout");
    close_run();
}

TEST(test_upload_must_fit_the_disk)
{
    struct side s;
    open_run();
    side_init(&s, N);
    s.whole = true;
    s.t[2].shape[0] = UINT64_C(1) << 38;
    s.t[2].bytes = 20 * s.t[2].shape[0]; /* 5 TiB */
    encode(&s);
    say_join(0, &s);
    uint64_t id = uploads(0).upload;
    send_head(id, 100, s.t[2].bytes);
    rig_refused(&rig, 0, REFUSE_LAYOUT, "the initial model of 'worker-0' is refused: it has 5.5 TB, and the first");
    close_run();
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
