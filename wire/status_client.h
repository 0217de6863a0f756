/* Ask a coordinator how its run is going, as `atoll status ADDRESS` does. */
#ifndef WIRE_STATUS_CLIENT_H
#define WIRE_STATUS_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "wire/transport.h"

/* The coordinator's answer (JSON text, terminated) into `json`; WIRE_STATUS_MAX bytes always suffice. Asks again every
 * second, as messages may be lost. CLOSED when nothing came before timeout_us, REFUSED with the coordinator's words
 * when it refuses, LIMIT when `cap` is too small; the line in err says what to do. */
enum status status_ask(const struct transport_address *address, uint64_t timeout_us, char *json, size_t cap,
                       struct err *err) MUST_CHECK;

#endif
