/* Staging of unpinned host memory: it crosses the bus through two pinned buffers in turn, on a queue of its own. While
 * one buffer is in transfer, the host fills or empties the other. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "gpu/cuda/cuda_bf16_weights.h"

struct cuda_stage {
    size_t bytes;                              /* bytes of each buffer; 0: no buffers */
    void *buffer[DEVICE_STAGES];               /* pinned */
    struct cuda_event *through[DEVICE_STAGES]; /* end of the buffer's last copy on COPY */
    struct cuda_event *enter, *leave;          /* order COPY after MAIN, and MAIN after COPY */
    struct pool *pool;                         /* copies between buffer and host memory; may be NULL */
    int turn;
};

static void finish(struct cuda_device *cuda)
{
    struct cuda_stage *s = cuda->stage;
    cuda_rt_event_free(cuda->rt, s->enter);
    cuda_rt_event_free(cuda->rt, s->leave);
    for (int i = 0; i < DEVICE_STAGES; i++) {
        cuda_rt_event_free(cuda->rt, s->through[i]);
        cuda_rt_host_release(cuda->rt, s->buffer[i]);
    }
    *s = (struct cuda_stage){.bytes = 0};
}

static enum status make(struct cuda_device *cuda, size_t bytes, struct pool *pool)
{
    struct cuda_stage *s = cuda->stage;
    assert(bytes > 0 && s->bytes == 0 && !s->enter);
    TRY(cuda_rt_event_create(cuda->rt, &s->enter));
    TRY(cuda_rt_event_create(cuda->rt, &s->leave));
    for (int i = 0; i < DEVICE_STAGES; i++) {
        TRY(cuda_rt_event_create(cuda->rt, &s->through[i]));
        s->buffer[i] = cuda_rt_host_alloc(cuda->rt, bytes);
        if (!s->buffer[i]) return STATUS_NOMEM;
    }
    s->bytes = bytes;
    s->pool = pool;
    return STATUS_OK;
}

static enum status stage_plan(struct device *dev, size_t bytes, struct pool *pool)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (cuda->stage->bytes || !bytes) return STATUS_OK;
    enum status status = make(cuda, bytes, pool);
    if (status != STATUS_OK) finish(cuda);
    return status;
}

/* Orders COPY after all work that MAIN has been given so far. */
static void enter(struct cuda_device *cuda)
{
    assert(cuda->stage->enter && cuda->stage->leave);
    cuda_rt_event_record(cuda->rt, CUDA_MAIN, cuda->stage->enter);
    cuda_rt_queue_wait(cuda->rt, CUDA_COPY, cuda->stage->enter);
}

/* The next buffer, after its last copy has ended; -1: the device failed. */
static int next_buffer(struct cuda_device *cuda)
{
    struct cuda_stage *s = cuda->stage;
    int i = s->turn;
    assert(i >= 0 && i < DEVICE_STAGES && s->buffer[i]);
    s->turn = (i + 1) % DEVICE_STAGES;
    return cuda_rt_event_wait(cuda->rt, s->through[i], NULL) == STATUS_OK ? i : -1;
}

static size_t piece(const struct cuda_stage *s, size_t bytes, size_t at)
{
    assert(at < bytes && s->bytes > 0);
    return bytes - at < s->bytes ? bytes - at : s->bytes;
}

static void stage_send(struct device *dev, void *dst, const void *src, size_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_stage *s = cuda->stage;
    if (!bytes) return;
    cuda_written(cuda, dst, bytes);
    if (!s->bytes) {
        cuda_rt_copy(cuda->rt, dst, src, bytes, CUDA_UPLOAD);
        enum status ignored = cuda_rt_sync(cuda->rt, NULL); /* src may change now; an error sticks */
        (void)ignored;
        return;
    }
    enter(cuda);
    for (size_t at = 0; at < bytes; at += s->bytes) {
        size_t n = piece(s, bytes, at);
        int i = next_buffer(cuda);
        if (i < 0) return;
        pool_copy(s->pool, s->buffer[i], (const char *)src + at, n);
        cuda_rt_copy_on(cuda->rt, CUDA_COPY, (char *)dst + at, s->buffer[i], n, CUDA_UPLOAD);
        cuda_rt_event_record(cuda->rt, CUDA_COPY, s->through[i]);
    }
    cuda_rt_event_record(cuda->rt, CUDA_COPY, s->leave);
    cuda_rt_queue_wait(cuda->rt, CUDA_MAIN, s->leave);
}

/* Starts the download of the piece at `at` and returns the index of its buffer; -1: the device failed. */
static int submit(struct cuda_device *cuda, const void *src, size_t bytes, size_t at)
{
    struct cuda_stage *s = cuda->stage;
    int i = next_buffer(cuda);
    if (i < 0) return i;
    cuda_rt_copy_on(cuda->rt, CUDA_COPY, s->buffer[i], (const char *)src + at, piece(s, bytes, at), CUDA_DOWNLOAD);
    cuda_rt_event_record(cuda->rt, CUDA_COPY, s->through[i]);
    return i;
}

/* The host waits for every piece, so MAIN need not wait for COPY. */
static enum status stage_fetch(struct device *dev, void *dst, const void *src, size_t bytes, struct err *err)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_stage *s = cuda->stage;
    if (!s->bytes || !bytes) {
        cuda_rt_copy(cuda->rt, dst, src, bytes, CUDA_DOWNLOAD);
        return cuda_rt_sync(cuda->rt, err);
    }
    enter(cuda);
    int now = submit(cuda, src, bytes, 0), next = -1;
    for (size_t at = 0; at < bytes && now >= 0; at += s->bytes, now = next) {
        size_t n = piece(s, bytes, at);
        next = at + n < bytes ? submit(cuda, src, bytes, at + n) : -1;
        TRY(cuda_rt_event_wait(cuda->rt, s->through[now], err));
        pool_copy(s->pool, (char *)dst + at, s->buffer[now], n);
    }
    return cuda_rt_event_wait(cuda->rt, s->enter, err); /* returns the error of a piece that could not be submitted */
}

enum status cuda_stage_open(struct cuda_device *cuda)
{
    cuda->ops.stage_plan = stage_plan;
    cuda->ops.send = stage_send;
    cuda->ops.fetch = stage_fetch;
    cuda->stage = mem_alloc(1, sizeof *cuda->stage);
    return cuda->stage ? STATUS_OK : STATUS_NOMEM;
}

void cuda_stage_close(struct cuda_device *cuda)
{
    if (cuda->stage) finish(cuda);
    mem_free(cuda->stage);
}
