/* Files of a worker's processes in a saved state (worker/outer/rank_file.h). */
#include <string.h>

#include "common/base/mem.h"
#include "worker/api/api_impl.h"
#include "worker/outer/rank_board.h"
#include "worker/outer/rank_file.h"
#include "worker/outer/worker_state.h"

struct atoll_rank {
    char folder[CONFIG_PATH_MAX];
    struct rank_board board;
    struct rank_file file; /* out.fd -1: not open */
    uint64_t tag;          /* announced; 0: none */
};

const char *atoll_dir(const struct atoll *a)
{
    return api_is_here(a) ? a->options.dir : "";
}

void atoll_state_files(struct atoll *a, uint64_t tag, uint32_t ranks)
{
    if (!api_is_here(a)) return;
    a->state_tag = tag;
    a->state_ranks = ranks <= SAVED_RANKS_MAX ? ranks : 0;
}

_Static_assert((int)ATOLL_SAVE_HELD == (int)OUTER_SAVE_HELD && (int)ATOLL_SAVE_BESIDE == (int)OUTER_SAVE_BESIDE,
               "the same numbers");

enum atoll_save atoll_next_save(struct atoll *a, uint64_t bytes)
{
    API_CALL;
    if (!api_is_here(a) || a->phase != API_JOINED || !a->state.save) return ATOLL_SAVE_NONE;
    API_SESSION(a);
    return (enum atoll_save)outer_loop_next_save(a->loop, bytes);
}

static enum atoll_status check_folder(const char *dir, uint32_t rank, const char *call, struct atoll_error *error)
{
    if (!dir || !*dir || strlen(dir) >= CONFIG_PATH_MAX)
        return api_refuse(error, ATOLL_INVALID, "%s: dir is empty or too long", call);
    if (rank >= SAVED_RANKS_MAX)
        return api_refuse(error, ATOLL_INVALID, "%s: rank %u: a worker has at most %d ranks", call, rank,
                          SAVED_RANKS_MAX);
    return ATOLL_OK;
}

enum atoll_status atoll_rank_open(struct atoll_rank **r_p, const char *dir, uint32_t rank, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    if (!r_p) return api_refuse(error, ATOLL_INVALID, "atoll_rank_open: the place for the rank is NULL");
    *r_p = NULL;
    api_log_init();
    enum atoll_status bad = check_folder(dir, rank, "atoll_rank_open", error);
    if (bad != ATOLL_OK) return bad;
    struct atoll_rank *r = mem_alloc(1, sizeof *r);
    if (!r) return api_refuse(error, ATOLL_NOMEM, "out of memory");
    memcpy(r->folder, dir, strlen(dir) + 1);
    r->file.out.fd = -1;
    enum status status = rank_board_open(&r->board, dir, rank, &err);
    if (status == STATUS_OK) {
        *r_p = r;
        return ATOLL_OK;
    }
    mem_free(r);
    return api_error(error, status, &err);
}

enum atoll_status atoll_rank_begin(struct atoll_rank *r, uint64_t tag, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    if (!r || !tag) return api_refuse(error, ATOLL_INVALID, "atoll_rank_begin: the rank is NULL, or the tag is 0");
    rank_file_abort(&r->file);
    r->tag = tag;
    enum status status = rank_board_set(&r->board, tag, RANK_WRITES, "", &err);
    return status == STATUS_OK ? ATOLL_OK : api_error(error, status, &err);
}

/* The file is opened by the thread that writes it. */
static enum status open_file(struct atoll_rank *r, struct err *err)
{
    return r->file.out.fd >= 0 ? STATUS_OK : rank_file_begin(&r->file, r->folder, r->board.rank, r->tag, err);
}

enum atoll_status atoll_rank_put(struct atoll_rank *r, const void *data, size_t size, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    if (!r || !r->tag) return api_refuse(error, ATOLL_ORDER, "atoll_rank_put: call atoll_rank_begin first");
    if (size && !data) return api_refuse(error, ATOLL_INVALID, "atoll_rank_put: data is NULL");
    enum status status = open_file(r, &err);
    if (status == STATUS_OK) status = rank_file_put(&r->file, data, size, &err);
    return status == STATUS_OK ? ATOLL_OK : api_error(error, status, &err);
}

enum atoll_status atoll_rank_end(struct atoll_rank *r, const char *failure, struct atoll_error *error)
{
    API_CALL;
    struct err err = {0}, ignored = {0};
    if (!r || !r->tag) return api_refuse(error, ATOLL_ORDER, "atoll_rank_end: call atoll_rank_begin first");
    enum status status = STATUS_OK;
    if (!failure) {
        status = open_file(r, &err); /* it may be empty */
        if (status == STATUS_OK) status = rank_file_end(&r->file, &err);
        if (status != STATUS_OK) failure = err.msg;
    }
    rank_file_abort(&r->file);
    enum status told = rank_board_set(&r->board, r->tag, failure ? RANK_FAILED : RANK_DURABLE, failure ? failure : "",
                                      status == STATUS_OK ? &err : &ignored);
    r->tag = 0;
    if (status == STATUS_OK) status = told;
    return status == STATUS_OK ? ATOLL_OK : api_error(error, status, &err);
}

enum atoll_status atoll_rank_load(const char *dir, uint32_t rank, uint64_t tag, const void **data, size_t *size,
                                  struct atoll_error *error)
{
    API_CALL;
    struct err err = {0};
    struct file_map map;
    const uint8_t *body;
    api_log_init();
    if (!data || !size) return api_refuse(error, ATOLL_INVALID, "atoll_rank_load: data or size is NULL");
    enum atoll_status bad = check_folder(dir, rank, "atoll_rank_load", error);
    if (bad != ATOLL_OK) return bad;
    enum status status = rank_file_map(&map, dir, rank, tag, &body, size, &err);
    if (status == STATUS_OK) {
        *data = body;
        return ATOLL_OK;
    }
    if (status == STATUS_CORRUPT) {
        rank_file_set_aside(dir, rank, tag);
        return api_refuse(error, ATOLL_INVALID, "%s: start the worker again, it then loads its state before", err.msg);
    }
    return api_error(error, status, &err);
}

void atoll_rank_unload(const void *data, size_t size)
{
    if (!data) return;
    struct file_map map = {.data = (const uint8_t *)data - RANK_FILE_HEAD, .size = size + RANK_FILE_HEAD};
    file_map_close(&map);
}

/* A file that was announced fails: rank 0 does not wait for it. */
void atoll_rank_close(struct atoll_rank *r)
{
    API_CALL;
    if (!r) return;
    if (r->tag) (void)atoll_rank_end(r, "it left during the save", NULL);
    rank_board_close(&r->board);
    mem_free(r);
}
