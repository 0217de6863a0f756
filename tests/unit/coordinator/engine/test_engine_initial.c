/* The upload of the initial model (model.family external): losses, take-overs, long work and hostile uploads. */
#include "common/base/rng.h"
#include "common/os/fileio.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/initial_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "wire/initial.h"

static bool exists(const char *name)
{
    return file_exists(tmpdir_path(name));
}

/* Lost, repeated and reordered chunks; a repeated JOIN says where to go on. */
TEST(test_upload_survives_losses)
{
    enum { STEP = 600 };
    struct msg m;
    initial_open();
    rig_say_join(&up.rig, 0);
    struct msg_upload u = initial_uploads(0);
    uint64_t have = 0;
    for (int i = 0; have < up.size; i++) {
        size_t left = up.size - have, n = left < STEP ? left : STEP;
        bool lost = rng_u64(3, RNG_TEST, (uint64_t)i) % 3 == 0;
        if (!lost) initial_send(up.rig.workers[0].bulk, u.upload, have, n);
        if (have + n < up.size) /* the one after it, and the one before */
            initial_send(up.rig.workers[0].bulk, u.upload, have + 2 * n < up.size ? have + 2 * n : up.size - 1, 1);
        if (have) initial_send(up.rig.workers[0].bulk, u.upload, 0, have < STEP ? have : STEP);
        if (!lost && left <= STEP) break;
        if (lost) rig_wait(&up.rig, 4000000);
        rig_join_message(&up.rig, 0, false, &m);
        rig_say(&up.rig, up.rig.workers[0].control, &m);
        struct msg_upload now = initial_uploads(0);
        assert_true(now.upload == u.upload && now.have == (lost ? have : have + n));
        have = now.have;
    }
    rig_expect(&up.rig, 0, MSG_WELCOME, &m);
    initial_expect_theta();
    initial_close();
}

TEST(test_restart_begins_upload_again)
{
    initial_open();
    rig_say_join(&up.rig, 0);
    struct msg_upload u = initial_uploads(0), again;
    initial_send(up.rig.workers[0].bulk, u.upload, 0, 500);
    assert_true(exists("init.tmp"));
    rig_restart(&up.rig, true, 1);
    assert_false(exists("init.tmp"));
    initial_send(up.rig.workers[0].bulk, u.upload, 500, 100); /* nothing listens to the old upload */
    rig_say_join(&up.rig, 0);
    again = initial_uploads(0);
    assert_true(again.upload != u.upload && !again.have);
    initial_send_all(0, again.upload, 0, 1000);
    initial_expect_theta();
    initial_close();
}

/* The coordinator ends between the rename of RUN/init and the journal's record: the folder is used. */
TEST(test_folder_without_record_is_used)
{
    struct msg m;
    initial_open();
    rig_say_join(&up.rig, 0);
    initial_send_all(0, initial_uploads(0).upload, 0, 1000);
    struct store *fresh;
    engine_destroy(up.rig.engine);
    store_mem_destroy(up.rig.store);
    assert_int_equal(store_mem_create(&fresh), STATUS_OK);
    store_mem_keep_init(fresh, tmpdir);
    up.rig.store = fresh;
    struct err err = {0};
    assert_int_equal(rig_start(&up.rig, &err), STATUS_OK);
    rig_forget(&up.rig);
    rig_say_join(&up.rig, 1);
    rig_expect(&up.rig, 1, MSG_WELCOME, &m);
    initial_expect_theta();
    initial_close();
}

TEST(test_other_worker_waits_and_takes_over)
{
    for (int closed = 0; closed < 2; closed++) {
        initial_open();
        rig_say_join(&up.rig, 0);
        struct msg_upload first = initial_uploads(0), u;
        initial_send(up.rig.workers[0].bulk, first.upload, 0, 500);
        rig_say_join(&up.rig, 1);
        u = initial_uploads(1);
        assert_true(!u.upload && strstr(u.text, "the initial model, which worker-0 uploads (500 B of "));
        initial_send(up.rig.workers[1].bulk, 0, 0, 1000);             /* it may not upload */
        initial_send(up.rig.workers[1].bulk, first.upload, 500, 100); /* nor with the key of the first */
        rig_say_join(&up.rig, 1);
        assert_non_null(strstr(initial_uploads(1).text, "(500 B of "));
        if (closed)
            up.rig.closed_peer = up.rig.workers[0].control;
        else
            rig_wait(&up.rig, 31000000);
        rig_say_join(&up.rig, 1);
        u = initial_uploads(1);
        assert_true(u.upload && u.upload != first.upload && !u.have);
        initial_send_all(0, first.upload, 500, 100); /* the first one comes back: its bytes count no more */
        up.rig.closed_peer = UINT64_MAX;
        rig_say_join(&up.rig, 0);
        assert_true(!initial_uploads(0).upload);
        initial_send_all(1, u.upload, 0, 1000);
        initial_expect_theta();
        rig_say_join(&up.rig, 0);
        struct msg m;
        rig_expect(&up.rig, 0, MSG_WELCOME, &m);
        initial_close();
    }
}

/* A pause of the coordinator is no silence of the worker that uploads. */
TEST(test_pause_does_not_end_an_upload)
{
    initial_open();
    rig_say_join(&up.rig, 0);
    struct msg_upload u = initial_uploads(0);
    initial_send(up.rig.workers[0].bulk, u.upload, 0, 500);
    up.rig.now += 40000000;
    rig_say_join(&up.rig, 1);
    assert_true(!initial_uploads(1).upload);
    initial_send_all(0, u.upload, 500, 1000);
    initial_expect_theta();
    initial_close();
}

/* As the server: answers while the work would run. */
static void answer_first(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg)
{
    const struct rig *r = ctx;
    (void)bytes;
    if (r->engine) engine_reassure(r->engine);
    work(arg);
}

/* Storing the model takes long. No worker has a session yet, and each gives up without an answer. */
TEST(test_all_are_answered_while_the_model_is_stored)
{
    struct msg m;
    int uploader = 0, waiting = 0;
    rig_meanwhile = answer_first;
    initial_open();
    rig_say_join(&up.rig, 0);
    struct msg_upload u = initial_uploads(0);
    rig_say_join(&up.rig, 1);
    rig_forget(&up.rig);
    initial_send_all(0, u.upload, 0, 1000);
    while (rig_take(&up.rig, 0, MSG_UPLOAD, &m)) uploader += m.upload.upload == u.upload && m.upload.have == up.size;
    while (rig_take(&up.rig, 1, MSG_UPLOAD, &m))
        waiting += !m.upload.upload && strstr(m.upload.text, "stores the initial");
    assert_true(uploader >= 1 + 3 && waiting >= 3); /* the folder, the model, the first checkpoint */
    rig_expect(&up.rig, 0, MSG_WELCOME, &m);
    rig_say_join(&up.rig, 1);
    rig_expect(&up.rig, 1, MSG_WELCOME, &m);
    engine_reassure(up.rig.engine);
    for (int i = 0; i < 2; i++) rig_expect_none(&up.rig, i, MSG_UPLOAD);
    initial_close();
    rig_meanwhile = NULL;
}

/* --- hostile uploads ---------------------------------------------------------------------------------------------- */

/* Sends this head and, if it is taken, bytes. */
static void upload_head(const struct initial_head *head)
{
    rig_say_join(&up.rig, 0);
    struct msg_upload u = initial_uploads(0);
    memset(up.object, 'x', sizeof up.object);
    size_t n = initial_head_encode(head, up.object);
    up.size = initial_total(head);
    initial_send(up.rig.workers[0].bulk, u.upload, 0, n + 1);
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
        initial_open();
        for (int k = 0; k < 2; k++) {
            snprintf(head.files[k].name, sizeof head.files[k].name, "%s", cases[i].names[k]);
            head.files[k].size = cases[i].sizes[k];
        }
        upload_head(&head);
        rig_refused(&up.rig, 0, REFUSE_LAYOUT, cases[i].why);
        initial_plain_object(); /* the next worker may try */
        rig_say_join(&up.rig, 1);
        initial_send_all(1, initial_uploads(1).upload, 0, 1000);
        initial_expect_theta();
        initial_close();
    }
}

/* Whole uploads that do not hold the layout's tensors, or NaN. */
TEST(test_false_models_are_refused)
{
    for (int lie = 0; lie < 3; lie++) {
        initial_open();
        rig_say_join(&up.rig, 0);
        struct msg_upload u = initial_uploads(0);
        const char *json = lie == 1 ? "\"shape\":[8,4]" : "tensor_0";
        uint8_t *at = memmem(up.object, up.size, json, strlen(json));
        assert_non_null(at);
        if (lie == 0) at[7] = '9'; /* tensor_9 */
        if (lie == 1) memcpy(at, "\"shape\":[4,8]", strlen(json));
        if (lie == 2) memset(up.object + up.size - 4, 0xff, 4); /* NaN */
        initial_send_all(0, u.upload, 0, 1000);
        rig_refused(&up.rig, 0, REFUSE_LAYOUT, lie == 2 ? "NaN or infinity" : lie ? "has shape" : "tensor_9");
        assert_false(exists("init"));
        assert_null(engine_theta(up.rig.engine));
        initial_plain_object();
        rig_say_join(&up.rig, 1);
        initial_send_all(1, initial_uploads(1).upload, 0, 1000);
        initial_expect_theta();
        initial_close();
    }
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
