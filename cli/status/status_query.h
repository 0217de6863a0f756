/* Asks for the status of a run: its coordinator, or the files of a stopped or finished run. All three give an object
 * with the keys of common/os/run_status.h. */
#ifndef CLI_STATUS_QUERY_H
#define CLI_STATUS_QUERY_H

#include <jansson.h>
#include <stdbool.h>

#include "common/base/status.h"
#include "wire/join_target.h"
#include "wire/transport.h"

/* Initialise with STATUS_QUESTION_INIT, or with these values. */
struct status_question {
    double timeout_s;             /* NAN: a default */
    const char *dir;              /* a worker's folder: ask with its key; NULL: with the secret of the join line */
    struct transport_worker self; /* if dir is set */
    bool keep; /* keep the connection for the next question, which then costs the coordinator no handshake */

    /* Set by status_query. */
    const char *run;                /* run folder; NULL: the target is an address */
    char run_id[2 * WIRE_UUID + 1]; /* id of the run in the folder; "": unknown */
    bool soon;                      /* end early if there is no connection */
    struct transport *kept;         /* NULL: none */
    char kept_address[JOIN_LINE_MAX];
};

/* Asks once. The caller decrefs *out. It may also be set if the status is CLOSED: the run is stopped. CLOSED:
 * nobody answered; NOTFOUND: no run there; MISMATCH, REFUSED, CORRUPT, INVALID, IO. */
enum status status_query(struct status_question *q, const struct join_target *target, json_t **out,
                         struct err *err) MUST_CHECK;
/* Closes the connection that was kept. */
void status_query_end(struct status_question *q);

#endif
