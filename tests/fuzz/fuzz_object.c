/* Updates, snapshot heads, heads of initial models with correct checksums, and lists of frozen tensors and
 * descriptions of models: byte 0 selects the kind.
 * - Encoding the decoded object returns the same bytes.
 * - An update is also decoded from its first bytes, and as relayed deltas. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/tensor/frozen.h"
#include "compress/relay.h"
#include "tests/fuzz/fuzz_check.h"
#include "wire/initial.h"
#include "wire/model_object.h"
#include "wire/object.h"

static void seal(uint8_t *bytes, size_t size)
{
    if (size < 4) return;
    uint32_t crc = crc32c(0, bytes, size - 4);
    for (size_t i = 0; i < 4; i++) bytes[size - 4 + i] = (uint8_t)(crc >> (8 * i));
}

/* Reads the beginning of an update, as a worker does. */
static void fuzz_peek(const uint8_t *bytes, size_t size)
{
    static struct update_named named[WIRE_NAMED_MAX];
    struct update u;
    size_t at = 0;
    uint64_t from, to, end = 0;
    enum status status = update_peek(&u, named, WIRE_NAMED_MAX, bytes, size, &at);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT || status == STATUS_AGAIN);
    if (status != STATUS_OK) return;
    FUZZ_CHECK(at <= size);
    for (uint32_t i = 0; i < u.n_named && i < 20; i++) {
        if (relay_range(bytes + at, size - at, u.n_named, i, &from, &to) != STATUS_OK) return;
        FUZZ_CHECK(from <= to && from >= relay_head_size(u.n_named) && (!i || from == end));
        end = to;
    }
}

static void fuzz_relayed(const struct update *u)
{
    static struct merge_delta deltas[WIRE_NAMED_MAX];
    size_t bytes = relay_head_size(u->n_named);
    if (relay_split(deltas, u->n_named, u->payload, u->payload_size) != STATUS_OK) return;
    for (uint32_t i = 0; i < u->n_named; i++) bytes += deltas[i].size;
    FUZZ_CHECK(bytes == u->payload_size);
}

static void fuzz_update(const uint8_t *bytes, size_t size, uint8_t *again)
{
    static struct update_named named[WIRE_NAMED_MAX];
    struct update u;
    enum status status = update_decode(&u, named, 8, bytes, size);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT || status == STATUS_LIMIT);
    if (status == STATUS_LIMIT) {
        status = update_decode(&u, named, WIRE_NAMED_MAX, bytes, size);
        FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    }
    size_t again_size;
    if (status != STATUS_OK) return;
    FUZZ_CHECK(update_encoded_size(&u) == size);
    FUZZ_CHECK(update_encode(&u, again, size, &again_size) == STATUS_OK && again_size == size);
    FUZZ_CHECK(memcmp(bytes, again, size) == 0);
    fuzz_relayed(&u);
}

static void fuzz_head(const uint8_t *bytes, size_t size)
{
    struct snapshot_head h;
    uint8_t again[SNAPSHOT_HEAD_BYTES];
    enum status status = snapshot_head_decode(&h, bytes, size);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    if (status != STATUS_OK) return;
    snapshot_head_encode(&h, again);
    FUZZ_CHECK(memcmp(bytes, again, sizeof again) == 0);
}

static void fuzz_initial(const uint8_t *bytes, size_t size)
{
    struct initial_head h;
    uint8_t again[INITIAL_HEAD_MAX];
    enum status status = initial_head_decode(&h, bytes, size, NULL);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    if (status != STATUS_OK) return;
    size_t n = initial_head_encode(&h, again);
    FUZZ_CHECK(n <= size && memcmp(bytes, again, n) == 0 && initial_total(&h) > n);
    for (uint32_t i = 0; i < h.n_files; i++) FUZZ_CHECK(!strchr(h.files[i].name, '/') && h.files[i].name[0] != '.');
}

static void fuzz_model(const uint8_t *bytes, size_t size, uint8_t *again)
{
    static struct model_object m;
    enum status status = model_object_decode(&m, bytes, size);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    if (status != STATUS_OK) return;
    FUZZ_CHECK(model_object_size(&m) == size && model_object_encode(&m, again) == STATUS_OK);
    FUZZ_CHECK(memcmp(bytes, again, size) == 0);
    for (uint32_t i = 0; i < m.n_files; i++) FUZZ_CHECK(!strchr(m.files[i].name, '/') && m.files[i].name[0] != '.');
}

static void fuzz_frozen(const uint8_t *bytes, size_t size, uint8_t *again)
{
    struct frozen list = {0};
    char text[FROZEN_DIFFERENCE_MAX];
    enum status status = frozen_decode(&list, bytes, size);
    FUZZ_CHECK(status == STATUS_OK || status == STATUS_CORRUPT);
    if (status == STATUS_OK) {
        struct writer w = writer_of(again, size);
        frozen_encode(&list, &w);
        FUZZ_CHECK(!w.bad && w.pos == size && frozen_encoded_size(&list) == size && !memcmp(bytes, again, size));
        FUZZ_CHECK(!frozen_difference(&list, &list, text));
        for (uint32_t i = 0; i < list.n; i++) FUZZ_CHECK(frozen_find(&list, list.tensors[i].name) == &list.tensors[i]);
    }
    frozen_finish(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    size_t n = size - 1;
    uint8_t *bytes = malloc(n + 1), *again = malloc(n + 1);
    FUZZ_CHECK(bytes && again);
    uint8_t *exact = bytes + 1; /* ends at the end of the allocation */
    memcpy(exact, data + 1, n);
    if (data[0] & 8) {
        seal(exact, n);
        fuzz_model(exact, n, again);
    } else if (data[0] & 4) {
        fuzz_frozen(exact, n, again);
    } else if (data[0] & 2) {
        seal(exact, n);
        fuzz_initial(exact, n);
    } else if (data[0] & 1) {
        seal(exact, n < SNAPSHOT_HEAD_BYTES ? n : SNAPSHOT_HEAD_BYTES);
        fuzz_head(exact, n);
    } else {
        seal(exact, n);
        fuzz_update(exact, n, again);
        fuzz_peek(exact, n);
    }
    free(bytes);
    free(again);
    return 0;
}
