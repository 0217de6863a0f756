/* Who may see the page.
 *
 * - Without a token: programs of this machine. The page then listens on loopback, and the Host of a request must be a
 *   name of loopback. A hostile web site whose name resolves to 127.0.0.1 (DNS rebinding) would send its own name.
 * - With a token: everyone who has it, in the header "Authorization: Bearer TOKEN" or in the page's cookie. A browser
 *   gets the cookie for /?token=TOKEN. */
#ifndef CLI_PAGE_ACCESS_H
#define CLI_PAGE_ACCESS_H

#include <stdbool.h>

#include "common/base/status.h"

enum { PAGE_TOKEN_MIN = 16, PAGE_TOKEN_MAX = 256 };

struct page_access {
    char token[PAGE_TOKEN_MAX + 1]; /* "": none */
    char cookie[32];                /* name of the cookie; it has the port: browsers share cookies among ports */
    char host[256];                 /* of --listen, without brackets */
};

/* What a request says about its sender; NULL: nothing. */
struct page_request {
    const char *host, *authorization, *cookie; /* cookie: the value of the page's own */
    const char *token;                         /* in the address */
};

enum page_verdict { PAGE_ADMIT, PAGE_NEEDS_TOKEN, PAGE_WRONG_HOST };

enum page_verdict page_access_judge(const struct page_access *access, const struct page_request *request);
/* True if the token in the address is right: the browser may get the cookie. */
bool page_access_knows(const struct page_access *access, const char *token);
/* Reads the token from the first line of a file. A missing file is created with a new token, mode 0600. A warning says
 * if other users can read it. INVALID: it holds no token; IO. */
enum status page_access_read(struct page_access *access, const char *path, struct err *err) MUST_CHECK;

#endif
