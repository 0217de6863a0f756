/* The upload of the initial model (model.family external): losses, restarts, take-overs, and hostile uploads. */
#include <math.h>
#include <sys/stat.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/os/fileio.h"
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
static void make_object(void)
{
    struct outer_model model = {.layout = &rig.layout, .initial = theta, .files = files, .n_files = 2};
    struct outer_initial *initial;
    struct err err = {0};
    rng_normal_fill(7, RNG_TEST, 0, 1.0f, theta, RIG_PARAMS);
    if (outer_initial_open(&initial, &model, &err) != STATUS_OK) fail_msg("%s", err.msg);
    object_size = outer_initial_total(initial);
    assert_true(object_size <= sizeof object);
    for (size_t at = 0; at < object_size; at += 1000) {
        size_t n = object_size - at < 1000 ? object_size - at : 1000;
        const uint8_t *bytes = outer_initial_read(initial, at, n, &err);
        assert_non_null(bytes);
        memcpy(object + at, bytes, n);
    }
    outer_initial_close(initial);
}

/* The key of a worker begins with its uuid. */
static bool find_peer(void *ctx, uint64_t peer, struct engine_peer *out)
{
    (void)ctx;
    for (int i = 0; i < RIG_WORKERS; i++) {
        const struct rig_worker *w = &rig.workers[i];
        if (peer != w->control && peer != w->bulk) continue;
        *out = (struct engine_peer){.right = ENGINE_RIGHT_WORKER};
        memcpy(out->key, w->uuid, WIRE_UUID);
        snprintf(out->name, sizeof out->name, "%s", w->name);
        return true;
    }
    return false;
}

static void open_run(void)
{
    static const char *const settings[] = {"model.family=external", "coordinator.min_workers=1", NULL};
    static const struct rig_access access = {.peer = find_peer};
    rig_access = &access;
    rig_open(&rig, settings);
    store_mem_keep_init(rig.store, tmpdir);
    for (int i = 0; i < RIG_WORKERS; i++) rig.workers[i].blind = true;
    make_object();
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

static void expect_refused(int worker, const char *text)
{
    struct msg m;
    rig_expect(&rig, worker, MSG_REFUSE, &m);
    if (!strstr(m.refuse.text, text)) fail_msg("\"%s\" does not contain \"%s\"", m.refuse.text, text);
    assert_int_equal(m.refuse.code, REFUSE_LAYOUT);
}

static bool exists(const char *name)
{
    return file_exists(tmpdir_path(name));
}

TEST(test_first_worker_uploads)
{
    static const size_t steps[] = {700, 1000, 1 << 16};
    for (size_t i = 0; i < 3; i++) {
        struct msg m;
        void *text;
        size_t size;
        char waits[WIRE_TEXT_MAX];
        open_run();
        rig_say_join(&rig, 0);
        struct msg_upload u = uploads(0);
        assert_true(u.upload && !u.have && u.upto >= object_size);
        rig_expect_none(&rig, 0, MSG_WELCOME);
        assert_non_null(
            strstr(engine_waiting(rig.engine, waits, sizeof waits), "initial model, which worker-0 uploads"));
        assert_false(exists("init"));
        send_all(0, u.upload, 0, steps[i]);
        rig_expect(&rig, 0, MSG_WELCOME, &m);
        for (uint32_t f = 0; f < rig.layout.n_fragments; f++) {
            const struct fragment *fragment = &rig.layout.fragments[f];
            assert_true(m.welcome.snapshot[f].hash == hash_floats(NULL, theta + fragment->offset, fragment->count));
        }
        expect_theta();
        assert_int_equal(file_read(tmpdir_path("init/config.json"), 100, &text, &size, NULL), STATUS_OK);
        assert_memory_equal(text, files[0].data, files[0].size);
        mem_free(text);
        assert_true(exists("init/tokenizer.json") && exists("init/model.safetensors") && !exists("init.tmp"));
        send_all(0, u.upload, 0, 1000); /* late repetitions */
        rig_join(&rig, 1);              /* the others just join */
        rig_restart(&rig, true, i);
        expect_theta();
        rig_join(&rig, 1);
        rig_assigned(&rig, 1);
        close_run();
    }
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
        send_bytes(rig.workers[1].bulk, 0, 0, 1000); /* it may not upload */
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
        expect_refused(0, cases[i].why);
        make_object(); /* the next worker may try */
        rig_say_join(&rig, 1);
        send_all(1, uploads(1).upload, 0, 1000);
        expect_theta();
        close_run();
    }
}

TEST(test_damaged_heads_are_refused)
{
    open_run();
    for (size_t i = 0; i < 80; i++) {
        rig_say_join(&rig, 0);
        struct msg_upload u = uploads(0);
        make_object();
        if (i % 2) object[i / 2] ^= 0x41;
        size_t n = i % 2 ? 600 : i / 2 + 1; /* damaged, or not whole */
        send_bytes(rig.workers[0].bulk, u.upload, 0, n);
        expect_refused(0, "the list of its files");
    }
    assert_null(engine_theta(rig.engine));
    close_run();
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
        expect_refused(0, lie == 2 ? "NaN or infinity" : lie ? "has shape" : "tensor_9");
        assert_false(exists("init"));
        assert_null(engine_theta(rig.engine));
        make_object();
        rig_say_join(&rig, 1);
        send_all(1, uploads(1).upload, 0, 1000);
        expect_theta();
        close_run();
    }
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
