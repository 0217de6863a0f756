/* The coordinator that a user names to a verb for links. */
#ifndef CLI_LINK_TARGET_H
#define CLI_LINK_TARGET_H

#include "wire/transport.h"

/* Finds the address for `given`: a run folder, a join line, a file with one, or "-"; NULL: ATOLL_JOIN. `given` is a
 * word of the command line; the keys of a join line are overwritten there. INVALID, NOTFOUND, IO. */
enum status link_target_find(struct transport_address *address, const char *given, struct err *err) MUST_CHECK;
/* The HOST:PORT in the address; borrowed. */
const char *link_target_host(const struct transport_address *address);

#endif
