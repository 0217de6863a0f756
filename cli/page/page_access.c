#include "cli/page/page_access.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "common/base/log.h"
#include "common/base/number.h"
#include "common/os/fileio.h"
#include "coordinator/run_folder.h"

enum { TOKEN_BYTES = 16 };

/* Its time does not depend on where the texts differ. */
bool page_access_knows(const struct page_access *access, const char *given)
{
    size_t n = strlen(access->token), m = given ? strlen(given) : 0;
    unsigned different = n != m;
    if (!n || !m) return false;
    for (size_t i = 0; i < n; i++)
        different |= (unsigned char)access->token[i] ^ (unsigned char)given[i < m ? i : m - 1];
    return !different;
}

/* Copies the host of "HOST:PORT" or "[HOST]:PORT". False: it does not fit. */
static bool host_of(const char *text, char *out, size_t cap)
{
    size_t n = strcspn(text, ":");
    if (*text == '[') {
        text++;
        n = strcspn(text, "]");
    }
    if (n >= cap) return false;
    memcpy(out, text, n);
    out[n] = 0;
    return true;
}

static bool is_loopback_name(const char *host)
{
    static const char top[] = ".localhost";
    size_t n = strlen(host);
    if (!strcasecmp(host, "localhost") || !strcmp(host, "::1")) return true;
    if (n > sizeof top - 1 && !strcasecmp(host + n - (sizeof top - 1), top)) return true;
    return !strncmp(host, "127.", 4) && host[strspn(host, "0123456789.")] == 0;
}

enum page_verdict page_access_judge(const struct page_access *access, const struct page_request *request)
{
    static const char scheme[] = "Bearer ";
    char host[256];
    if (access->token[0]) {
        const char *a = request->authorization;
        bool bearer = a && !strncasecmp(a, scheme, sizeof scheme - 1) &&
                      page_access_knows(access, a + sizeof scheme - 1 + strspn(a + sizeof scheme - 1, " "));
        return bearer || page_access_knows(access, request->cookie) ? PAGE_ADMIT : PAGE_NEEDS_TOKEN;
    }
    if (!request->host) return PAGE_ADMIT; /* every browser sends it */
    if (!host_of(request->host, host, sizeof host)) return PAGE_WRONG_HOST;
    return is_loopback_name(host) || !strcasecmp(host, access->host) ? PAGE_ADMIT : PAGE_WRONG_HOST;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static enum status make(const char *path, struct err *err)
{
    uint8_t secret[TOKEN_BYTES];
    char line[2 * TOKEN_BYTES + 2];
    if (getrandom(secret, sizeof secret, 0) != sizeof secret)
        return err_set(err, STATUS_IO, "the system gives no random bytes: %s", strerror(errno));
    number_hex_text(secret, sizeof secret, line);
    memcpy(line + 2 * sizeof secret, "\n", 2);
    return file_write_private(path, line, strlen(line), err);
}

/* Characters that need no escape in an address, a header or a cookie. */
static bool is_token(const char *text)
{
    size_t n = strlen(text);
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
    return n >= PAGE_TOKEN_MIN && !text[strspn(text, allowed)];
}

enum status page_access_read(struct page_access *access, const char *path, struct err *err)
{
    struct stat st;
    if (!file_exists(path)) TRY(make(path, err));
    enum status status = run_folder_read_line(path, access->token, sizeof access->token, err);
    if (status == STATUS_OK ? !is_token(access->token) : status == STATUS_LIMIT || status == STATUS_NOTFOUND) {
        explicit_bzero(access->token, sizeof access->token);
        return err_set(err, STATUS_INVALID,
                       "%s holds no token: its first line needs %d to %d letters, digits or -._~; or delete the file",
                       path, PAGE_TOKEN_MIN, PAGE_TOKEN_MAX);
    }
    TRY(status);
    if (!stat(path, &st) && st.st_mode & (S_IRGRP | S_IROTH))
        log_warn("other users can read the token in %s (mode %04o): set its mode to 0600", path, st.st_mode & 07777u);
    return STATUS_OK;
}
