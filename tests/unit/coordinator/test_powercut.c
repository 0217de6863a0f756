/* The power fails after every single change of a file or a folder.
 * - Files are whole.
 * - A run restarts with every version that a process may have seen, and a worker with every saved state that it was
 *   told of.
 * Single calls and allocations fail, too, each once. The disk is tests/lib/store/powercut.h. ctest: timeout=240 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/powercut.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/outer/rank_board.h"
#include "worker/outer/rank_file.h"
#include "worker/outer/state_dir.h"

#if defined(__SANITIZE_ADDRESS__)
enum { STRIDE = 3 };
#else
enum { STRIDE = 1 };
#endif

enum { DRAWS = POWERCUT_RANDOM + 2 };

static const char *root, *image; /* the recorded folder; its image after a power cut */
static size_t instant;
static uint64_t draw;

static _Noreturn void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static _Noreturn void wrong(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_msg("power fails after %zu changes, draw %llu: %s", instant, (unsigned long long)draw, text);
    abort();
}

/* Looks at all draws before each fsync, where most data is at stake; otherwise at one random draw, unless `hurried`. */
static void every_instant(void (*look)(void), bool hurried)
{
    powercut_end();
    size_t changes = powercut_changes();
    assert_true(changes > 10);
    for (instant = 0; instant <= changes; instant += STRIDE) {
        bool most = instant == changes || powercut_syncs(instant);
        for (draw = 0; draw < DRAWS; draw++) {
            if (!most && (hurried || draw != POWERCUT_RANDOM)) continue;
            powercut_image(instant, draw, image);
            look();
            tmpdir_clear(image);
        }
    }
    powercut_free();
}

static void empty_root(void)
{
    tmpdir_clear(root);
    assert_int_equal(mkdir(root, 0777), 0);
}

static const char *in_image(const char *name)
{
    static char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", image, name);
    return path;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

enum { VERSIONS = 5, VERSION_BYTES = 3000 };
#define NEVER SIZE_MAX

/* [version] the number of changes when its write returned */
static size_t written[VERSIONS + 1];

/* Makes version v: other values and another length. */
static size_t version_of(int v, uint8_t out[VERSION_BYTES])
{
    size_t n = (size_t)(v % 2 ? VERSION_BYTES - 100 * v : 700 * v);
    for (size_t i = 0; i < n; i++) out[i] = (uint8_t)(v + 16 * (i % 11));
    return n;
}

static int newest_written(void)
{
    int newest = 0;
    for (int v = 1; v <= VERSIONS; v++)
        if (written[v] <= instant) newest = v;
    return newest;
}

/* Returns the version of a file; 0: none. */
static int version_at(const char *path)
{
    uint8_t want[VERSION_BYTES];
    void *data;
    size_t n;
    int found = -1;
    enum status status = file_read(path, 2 * VERSION_BYTES, &data, &n, NULL);
    if (status == STATUS_NOTFOUND) return 0;
    assert_int_equal(status, STATUS_OK);
    for (int v = 1; v <= VERSIONS && found < 0; v++)
        if (version_of(v, want) == n && !memcmp(data, want, n)) found = v;
    mem_free(data);
    return found;
}

static void look_at_file(void)
{
    int v = version_at(in_image("a/b/file"));
    if (v < 0) wrong("the file is none of the versions");
    if (v < newest_written()) wrong("version %d, and %d had been written", v, newest_written());
}

static int setup(void **state);
static int teardown(void **state);

/* file_write in new folders. */
TEST_WITH(test_written_file_is_whole_after_power_cut, setup, teardown)
{
    char path[FILEIO_PATH_MAX];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(dir_make(path, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/a/b/file", root);
    for (int v = 1; v <= VERSIONS; v++) {
        uint8_t bytes[VERSION_BYTES];
        size_t n = version_of(v, bytes);
        if (file_write(path, bytes, n, &err) != STATUS_OK) fail_msg("%s", err.msg);
        written[v] = powercut_changes();
    }
    every_instant(look_at_file, false);
}

/* --- a worker's state --------------------------------------------------------------------------------------------- */

static struct saved_state state_of(int v)
{
    struct saved_state s = {.layout_hash = 7,
                            .n_params = 64,
                            .inner_size = 1500 - 200 * (uint64_t)v,
                            .round = (uint64_t)v,
                            .n_fragments = 1};
    s.f[0].count = 64;
    return s;
}

enum { RANKS = 2, RANK_BYTES = 5000 };

/* Every state that a disk holds has the files of its ranks. */
static void look_at_ranks(const struct saved_state *s)
{
    struct err err = {0};
    for (uint32_t rank = 0; rank < s->n_ranks; rank++) {
        struct file_map map;
        const uint8_t *body;
        size_t size;
        if (rank_file_map(&map, image, rank, s->tag, &body, &size, &err) != STATUS_OK)
            wrong("state %d: %s", (int)s->round, err.msg);
        else if (size != RANK_BYTES || body[0] != (uint8_t)s->round || memcmp(body, body + 1, size - 1) != 0)
            wrong("state %d: the file of rank %u has other bytes", (int)s->round, rank);
        else
            file_map_close(&map);
    }
}

static void look_at_state(void)
{
    struct state_dir dir;
    struct outer_setup setup = {0};
    struct saved_state s;
    int newest = 0;
    state_dir_init(&dir, image);
    state_dir_attach(&dir, &setup);
    for (int age = 0; age < 2; age++) { /* the older one counts if the disk cannot read the newest */
        const uint8_t *data;
        size_t n;
        struct err err = {0};
        enum status status = setup.load(&dir, age, &data, &n, &err);
        if (status == STATUS_NOTFOUND) continue;
        assert_int_equal(status, STATUS_OK);
        if (saved_state_decode(&s, data, n, &err) != STATUS_OK) wrong("age %d: %s", age, err.msg);
        if (!newest) newest = (int)s.round;
        look_at_ranks(&s);
        setup.release(&dir, data, n);
    }
    if (newest < newest_written()) wrong("state %d, and %d had been saved", newest, newest_written());
}

/* Saves one version after the other to `root`; a save may fail. */
static void save_versions(void)
{
    static float theta[64];
    static uint8_t inner[1500];
    struct state_dir dir;
    struct outer_setup setup = {0};
    state_dir_init(&dir, root);
    state_dir_attach(&dir, &setup);
    for (int v = 1; v <= VERSIONS; v++) {
        struct saved_state s = state_of(v);
        const struct outer_part body[] = {{theta, sizeof theta}, {inner, (size_t)s.inner_size}};
        for (int i = 0; i < 64; i++) theta[i] = (float)(v * i);
        memset(inner, v, sizeof inner);
        setup.save_begin(&dir, &s, body, 2);
        written[v] = setup.save_poll(&dir, true, NULL) == STATUS_OK ? powercut_changes() : NEVER;
    }
}

TEST_WITH(test_saved_state_survives_power_cut, setup, teardown)
{
    save_versions();
    for (int v = 1; v <= VERSIONS; v++) assert_true(written[v] != NEVER);
    every_instant(look_at_state, false);
}

/* Each rank writes its file, then rank 0 its state. */
TEST_WITH(test_state_of_ranks_survives_power_cut, setup, teardown)
{
    static float theta[64];
    static uint8_t bytes[RANK_BYTES];
    const struct outer_part body = {theta, sizeof theta};
    struct rank_board boards[RANKS];
    struct state_dir dir;
    struct outer_setup storage = {0};
    struct err err = {0};
    state_dir_init(&dir, root);
    state_dir_attach(&dir, &storage);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(rank_board_open(&boards[r], root, r, &err), STATUS_OK);
    for (int v = 1; v <= VERSIONS; v++) {
        struct saved_state s = state_of(v);
        s.inner_size = 0;
        s.tag = 1000 + (uint64_t)v;
        s.n_ranks = RANKS;
        memset(bytes, v, sizeof bytes);
        for (uint32_t r = 0; r < RANKS; r++) {
            struct rank_file f;
            assert_int_equal(rank_file_begin(&f, root, r, s.tag, &err), STATUS_OK);
            assert_int_equal(rank_file_put(&f, bytes, sizeof bytes, &err), STATUS_OK);
            assert_int_equal(rank_file_end(&f, &err), STATUS_OK);
            assert_int_equal(rank_board_set(&boards[r], s.tag, RANK_DURABLE, "", &err), STATUS_OK);
        }
        storage.save_begin(&dir, &s, &body, 1);
        assert_int_equal(storage.save_poll(&dir, true, &err), STATUS_OK);
        written[v] = powercut_changes();
    }
    for (uint32_t r = 0; r < RANKS; r++) rank_board_close(&boards[r]);
    every_instant(look_at_state, false);
}

/* Each call of a save fails once: only that save may report an error, and the power may fail at any time. */
TEST_WITH(test_failed_save_keeps_older_state, setup, teardown)
{
    bool more = true;
    int all = 0;
    powercut_free();
    for (size_t call = 0; more; call++) {
        powercut_begin(root);
        powercut_fail(call);
        save_versions();
        more = powercut_failed();
        int failed = 0;
        for (int v = 1; v <= VERSIONS; v++) failed += written[v] == NEVER;
        if (failed > 1) fail_msg("call %zu fails: %d saves report an error", call, failed);
        all += failed;
        every_instant(look_at_state, true);
        empty_root();
    }
    assert_true(all > 3 * VERSIONS); /* open, write, fsync, rename */
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

enum { SEEN_MAX = 1024, ROUNDS_MAX = 16 };

static struct rig rig;
static const char *const *settings;

/* After each step of the run: the number of changes, and the versions that a process may have seen. */
static struct seen {
    size_t changes;
    uint64_t versions[2];
} seen[SEEN_MAX];
static size_t n_seen;
/* The hashes of the undisturbed run with these settings; 0: not known yet. */
static uint64_t hashes[2][ROUNDS_MAX]; /* of each version of a fragment */
static uint64_t last_theta;

static void take_settings(const char *const *how)
{
    settings = how;
    n_seen = 0;
    memset(hashes, 0, sizeof hashes);
    last_theta = 0;
}

/* Checks a hash against the known one, or sets it. */
static void same(uint64_t *known, uint64_t now, const char *what)
{
    if (!*known) *known = now;
    if (*known != now) wrong("%s has other bits", what);
}

static uint64_t hash_of(uint32_t f)
{
    const struct fragment *part = &rig.layout.fragments[f];
    return hash_floats(NULL, engine_theta(rig.engine) + part->offset, part->count);
}

static void note(void)
{
    struct seen s = {.changes = powercut_changes()};
    for (uint32_t f = 0; f < 2; f++) {
        s.versions[f] = engine_version(rig.engine, f);
        assert_true(s.versions[f] < ROUNDS_MAX);
        same(&hashes[f][s.versions[f]], hash_of(f), "a fragment");
    }
    assert_true(n_seen < SEEN_MAX);
    seen[n_seen++] = s;
}

static struct store *store_in(const char *folder)
{
    struct store *s;
    struct err err = {0};
    if (store_disk_open(&s, folder, &err) != STATUS_OK) wrong("%s", err.msg);
    return s;
}

/* The model that `latest` names is whole; a started run has one. */
static void look_at_latest(bool begun)
{
    char name[64] = "", path[FILEIO_PATH_MAX];
    if (readlink(in_image("checkpoints/latest"), name, sizeof name - 1) < 0) {
        if (errno == ENOENT && !begun) return;
        wrong("latest is not a link to a checkpoint");
    }
    static const char *const files[] = {"config.json", "model.safetensors", "coordinator_state.bin"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s/%s", image, name, files[i]);
        if (!file_exists(path)) wrong("latest names %s, without %s", name, files[i]);
    }
}

/* The restart deletes incomplete checkpoints. */
static void look_for_incomplete_checkpoints(void)
{
    char path[FILEIO_PATH_MAX];
    DIR *dir = opendir(in_image("checkpoints"));
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        if (strncmp(e->d_name, "round_", 6) != 0) continue;
        snprintf(path, sizeof path, "%s/checkpoints/%s/coordinator_state.bin", image, e->d_name);
        if (!file_exists(path)) wrong("%s is half a checkpoint", e->d_name);
    }
    closedir(dir);
}

/* The run of every fifth image is continued to its end. */
static void look_at_run(void)
{
    struct err err = {0};
    const struct seen *before = NULL;
    for (size_t i = 0; i < n_seen && seen[i].changes <= instant; i++) before = &seen[i];
    look_at_latest(before);
    struct store *store = store_in(image);
    if (rig_open_on(&rig, settings, store, &err) != STATUS_OK) wrong("%s", err.msg);
    bool begun = engine_theta(rig.engine);
    if (before && !begun) wrong("no run is there");
    if (begun) look_for_incomplete_checkpoints();
    for (uint32_t f = 0; f < 2 && begun; f++) {
        uint64_t version = engine_version(rig.engine, f);
        if (before && version < before->versions[f])
            wrong("fragment %u at version %llu, and %llu had been seen", f, (unsigned long long)version,
                  (unsigned long long)before->versions[f]);
        if (version >= ROUNDS_MAX || hash_of(f) != hashes[f][version])
            wrong("fragment %u at version %llu: other bits", f, (unsigned long long)version);
    }
    if ((instant + draw) % 5 == 0) {
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_play(&rig, NULL);
        if (rig_theta_hash(&rig) != last_theta) wrong("played on, the run ends with other bits");
    }
    rig_close_on(&rig);
    store->ops->close(store);
}

/* Starts or continues the run in `root` to its end, which is always the same. */
static void run(void)
{
    struct err err = {0};
    struct store *store = store_in(root);
    if (rig_open_on(&rig, settings, store, &err) != STATUS_OK) wrong("%s", err.msg);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    note();
    rig_play(&rig, note);
    same(&last_theta, rig_theta_hash(&rig), "the run's end");
    rig_close_on(&rig);
    store->ops->close(store);
}

static const char *const diloco[] = {"coordinator.min_workers=2",
                                     "codec.up=int8:16",
                                     "codec.down=int8:16",
                                     "checkpoint.every=2",
                                     "checkpoint.keep=2",
                                     "train.max_steps=14",
                                     NULL};
TEST_WITH(test_run_survives_power_cut, setup, teardown)
{
    take_settings(diloco);
    run();
    every_instant(look_at_run, false);
}

/* ---- single failures --------------------------------------------------------------------------------------------- */

static jmp_buf stopped;
static bool memory; /* fails an allocation, or a call that changes files */
static size_t failing;

static void stop(const struct err *err)
{
    (void)mem_fail_after(0);
    const char *const want = memory ? "memory" : "Input/output error";
    if (!strstr(err->msg, want) && !(memory && strstr(err->msg, "cannot start 2 threads")))
        fail_msg("failure at number %zu, with the error: %s", failing, err->msg);
    longjmp(stopped, 1);
}

static int open_files(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* Runs the run of `settings` in `root` up to the failure, if that stops it. False if no call failed. */
static bool run_failing(void)
{
    struct err err = {0};
    struct store *volatile store = NULL;
    volatile bool opened = false, failed = false;
    powercut_begin(root);
    if (memory)
        (void)mem_fail_after((long)failing + 1);
    else
        powercut_fail(failing);
    if (!setjmp(stopped)) {
        struct store *s = NULL;
        if (store_disk_open(&s, root, &err) != STATUS_OK) stop(&err);
        store = s;
        opened = true;
        if (rig_open_on(&rig, settings, s, &err) != STATUS_OK) stop(&err);
        rig.failed = stop;
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        note();
        rig_play(&rig, note);
        failed = memory ? !mem_fail_after(0) : powercut_failed();
    } else {
        failed = true;
    }
    if (opened) rig_close_on(&rig);
    if (store) store->ops->close(store);
    powercut_free();
    return failed;
}

/* A coordinator that stops leaks nothing, and restarts in the same folder with every visible version. */
static void fail_each_once(bool of_memory)
{
    const char *const usual = image;
    int files = open_files();
    powercut_free();
    memory = of_memory;
    take_settings(diloco);
    run();
    empty_root();
    image = root;
    draw = 0;
    for (failing = 0;; failing += of_memory ? 1 : STRIDE) {
        n_seen = 0;
        bool more = run_failing();
        if (open_files() != files) fail_msg("failure at number %zu: files stay open", failing);
        if (mem_live_bytes()) fail_msg("failure at number %zu: memory leaks", failing);
        if (n_seen) seen[0] = seen[n_seen - 1];
        seen[0].changes = 0;
        n_seen = n_seen ? 1 : 0;
        instant = failing;
        look_at_run();
        empty_root();
        if (!more) break;
    }
    image = usual;
}

TEST_WITH(test_run_survives_failed_call, setup, teardown)
{
    fail_each_once(false);
    assert_true(failing > 200);
}

TEST_WITH(test_run_survives_failed_allocation, setup, teardown)
{
    fail_each_once(true);
    assert_true(failing > 50);
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

static int setup(void **state)
{
    static char paths[2][64];
    if (tmpdir_make(state)) return -1;
    log_set_sink(quiet, NULL);
    snprintf(paths[0], sizeof paths[0], "%s/root", tmpdir);
    snprintf(paths[1], sizeof paths[1], "%s/image", tmpdir);
    root = paths[0];
    image = paths[1];
    if (dir_make(root, NULL) != STATUS_OK) return -1;
    powercut_begin(root);
    return 0;
}

static int teardown(void **state)
{
    powercut_free();
    return tmpdir_remove(state);
}

TEST_MAIN(NULL, NULL)
