#include "common/base/mem.h"
#include "coordinator/ledger/store.h"

enum { LIST_FIRST = 256 };

enum status store_list(struct store *s, store_list_fn list, uint64_t **list_p, size_t *n_p, struct err *err)
{
    for (size_t cap = LIST_FIRST;; cap *= 2) {
        uint64_t *out = mem_alloc(cap, sizeof *out);
        if (!out) return err_set(err, STATUS_NOMEM, "no memory to list the run's files");
        enum status status = list(s, out, cap, n_p, err);
        if (status == STATUS_OK)
            *list_p = out;
        else
            mem_free(out);
        if (status != STATUS_LIMIT) return status;
        if (err) *err = (struct err){0};
    }
}

const char *store_folder(struct store *s)
{
    return s->ops->folder ? s->ops->folder(s) : NULL;
}
