/* Tensors that are not exchanged (model.family external): workers must agree on them, and the upload of the initial
 * model brings their values. */
#include "common/base/hash.h"
#include "common/os/fileio.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/initial_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/initial.h"

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
    rig_hello(&up.rig, worker);
    rig_expect(&up.rig, worker, MSG_CONFIG, &m);
    rig_join_message(&up.rig, worker, false, &m);
    m.join.frozen = s->bytes;
    m.join.frozen_size = s->size;
    m.join.frozen_any = s->any;
    m.join.frozen_whole = s->whole;
    rig_say(&up.rig, up.rig.workers[worker].control, &m);
}

static void expect_welcome(int worker, const struct side *s)
{
    struct msg m;
    say_join(worker, s);
    rig_expect(&up.rig, worker, MSG_WELCOME, &m);
}

static void refuse_join(int worker, const struct side *s, const char *words)
{
    say_join(worker, s);
    rig_refused(&up.rig, worker, REFUSE_LAYOUT, words);
}

TEST(test_other_base_is_refused)
{
    struct side run, other;
    rig_open(&up.rig, NULL);
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
        rig_restart(&up.rig, restarted == 0, 1);
    }
    rig_close(&up.rig);
}

TEST(test_run_without_frozen_tensors_takes_none)
{
    struct side none, some;
    rig_open(&up.rig, NULL);
    side_init(&none, 0);
    side_init(&some, N);
    expect_welcome(0, &none);
    refuse_join(1, &some, "frozen tensor 'base.bias' is missing in the run");
    up.rig.engine->ledger.model.frozen = NULL; /* as a record of an older release: nothing is compared */
    expect_welcome(1, &some);
    rig_close(&up.rig);
}

TEST(test_malformed_first_list_is_refused)
{
    struct side bad;
    rig_open(&up.rig, NULL);
    side_init(&bad, N);
    bad.size--;
    say_join(0, &bad);
    rig_refused(&up.rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    side_init(&bad, N);
    snprintf(bad.t[2].name, sizeof bad.t[2].name, "%s", up.rig.layout.tensors[0].name);
    encode(&bad);
    say_join(0, &bad);
    rig_refused(&up.rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    side_init(&bad, N);
    bad.t[2].bytes = UINT64_MAX;
    encode(&bad);
    say_join(0, &bad);
    rig_refused(&up.rig, 0, REFUSE_MALFORMED, "the list of frozen tensors of 'worker-0' is malformed");
    assert_null(engine_theta(up.rig.engine));
    rig_close(&up.rig);
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

/* The up.object of a worker with this list. */
static void make_object_of(const struct side *s, size_t step)
{
    for (size_t i = 0; i < BYTES_B; i++) values[i] = (uint8_t)(3 * i);
    initial_object((struct outer_model){.frozen = &s->list, .frozen_read = s->whole ? read_values : NULL}, step);
}

static void expect_uploaded(void)
{
    struct safetensors st;
    struct err err = {0};
    initial_expect_theta();
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
        initial_open();
        side_init(&s, N);
        s.whole = true;
        make_object_of(&s, steps[i]);
        say_join(0, &s);
        initial_send_all(0, initial_uploads(0).upload, 0, 1000);
        rig_expect(&up.rig, 0, MSG_WELCOME, &m);
        expect_uploaded();
        rig_restart(&up.rig, true, 1);
        s.whole = false; /* it comes second: nobody asks for its values */
        expect_welcome(1, &s);
        initial_close();
    }
}

TEST(test_program_that_cannot_read_uploads_nothing)
{
    struct side s;
    struct outer_initial *initial;
    struct err err = {0};
    initial_open();
    side_init(&s, N);
    struct outer_model model = {
        .layout = &up.rig.layout, .initial = up.theta, .frozen = &s.list, .frozen_read = fail_to_read};
    assert_int_equal(outer_initial_open(&initial, &model, &err), STATUS_OK);
    uint64_t total = outer_initial_total(initial);
    assert_null(outer_initial_read(initial, total - 1, 1, &err));
    assert_non_null(strstr(err.msg, "cannot read the frozen tensor 'base.weight'"));
    assert_non_null(outer_initial_read(initial, 0, 1, &err));
    outer_initial_close(initial);
    initial_close();
}

/* The uploader's list changed: its program was started again with another base. */
TEST(test_other_list_begins_upload_again)
{
    struct side s;
    initial_open();
    side_init(&s, N);
    s.whole = true;
    say_join(0, &s);
    uint64_t first = initial_uploads(0).upload;
    say_join(0, &s);
    assert_true(initial_uploads(0).upload == first);
    s.t[0].hash = 99;
    encode(&s);
    say_join(0, &s);
    assert_true(initial_uploads(0).upload != first);
    initial_close();
}

/* lie 0: no file; 1: a file that JOIN did not announce; 2: another tensor; 3: more tensors. */
TEST(test_false_frozen_files_are_refused)
{
    for (int lie = 0; lie < 4; lie++) {
        struct side told, sent;
        initial_open();
        side_init(&told, N);
        side_init(&sent, N);
        sent.whole = lie != 0;
        make_object_of(&sent, 1000);
        if (lie == 2) memcpy(memmem(up.object, up.size, "base.weight", 11), "case", 4);
        if (lie == 3) side_init(&told, 1);
        told.whole = lie != 1;
        say_join(0, &told);
        initial_send_all(0, initial_uploads(0).upload, 0, 1000);
        rig_refused(&up.rig, 0, REFUSE_LAYOUT,
                    lie < 2    ? "the sizes of its files do not fit its layout"
                    : lie == 2 ? "tensor 'case.weight' is not one of the worker's list"
                               : "frozen.safetensors has 3 tensors instead of 1");
        assert_false(file_exists(tmpdir_path("init")));
        assert_null(engine_theta(up.rig.engine));
        side_init(&told, N); /* the next worker may try */
        told.whole = true;
        make_object_of(&told, 1000);
        say_join(1, &told);
        initial_send_all(1, initial_uploads(1).upload, 0, 1000);
        expect_uploaded();
        initial_close();
    }
}

/* The first chunk of an upload with these sizes. */
static void send_head(uint64_t id, uint64_t model, uint64_t frozen)
{
    struct initial_head head = {.n_files = 2, .files = {{INITIAL_MODEL, model}, {INITIAL_FROZEN, frozen}}};
    initial_head_encode(&head, up.object);
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_INITIAL,
                              .key = id,
                              .total = initial_total(&head),
                              .data = up.object,
                              .size = 200,
                              .crc = crc32c(0, up.object, 200)}};
    rig_say(&up.rig, up.rig.workers[0].bulk, &m);
}

TEST(test_frozen_file_is_limited_by_its_list)
{
    struct side s;
    initial_open();
    side_init(&s, N);
    s.whole = true;
    say_join(0, &s);
    uint64_t id = initial_uploads(0).upload;
    send_head(id, 100, frozen_file_most(&s.list) + 1);
    rig_refused(&up.rig, 0, REFUSE_LAYOUT, "the sizes of its files do not fit its layout");
    initial_close();
}

TEST(test_upload_must_fit_the_disk)
{
    struct side s;
    initial_open();
    side_init(&s, N);
    s.whole = true;
    s.t[2].shape[0] = UINT64_C(1) << 38;
    s.t[2].bytes = 20 * s.t[2].shape[0]; /* 5 TiB */
    encode(&s);
    say_join(0, &s);
    uint64_t id = initial_uploads(0).upload;
    send_head(id, 100, s.t[2].bytes);
    rig_refused(&up.rig, 0, REFUSE_LAYOUT, "the initial model of 'worker-0' is refused: it has 5.5 TB, and the first");
    initial_close();
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
