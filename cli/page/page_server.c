#include "cli/page/page_server.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/page/page_files.h"
#include "cli/page/page_metrics.h"
#include "common/base/log.h"
#include "common/base/number.h"

enum { NONCE = 16, HEADER_MAX = 640 };

/* --- answers ------------------------------------------------------------------------------------------------------ */

struct answer {
    unsigned code;
    struct MHD_Response *response; /* NULL: no memory */
};

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    if (response && MHD_add_response_header(response, name, value) != MHD_YES) log_debug("no memory for %s", name);
}

/* Takes over `text` of malloc; NULL: no memory. */
static struct answer owned(unsigned code, char *text, size_t size, const char *type)
{
    struct answer a = {.code = code};
    if (text) a.response = MHD_create_response_from_buffer(size, text, MHD_RESPMEM_MUST_FREE);
    if (text && !a.response) free(text);
    add_header(a.response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return a;
}

static struct answer line(unsigned code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static struct answer line(unsigned code, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    return owned(code, n < 0 ? NULL : text, n < 0 ? 0 : (size_t)n, "text/plain; charset=utf-8");
}

/* A nonce of this answer names the page's own style and script; the browser runs no other ones. */
static struct answer page(void)
{
    static const char before[] = "<!--style-->", between[] = "<!--script-->";
    uint8_t random[NONCE];
    char nonce[2 * NONCE + 1], policy[HEADER_MAX], *text = NULL;
    size_t size = 0;
    const char *style = strstr(page_html, before), *script = strstr(page_html, between);
    FILE *out = style && script ? open_memstream(&text, &size) : NULL;
    if (!out || getrandom(random, sizeof random, 0) != sizeof random) {
        if (out) fclose(out);
        free(text);
        return line(MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory or random bytes for the page\n");
    }
    number_hex_text(random, sizeof random, nonce);
    fprintf(out, "%.*s<style nonce=\"%s\">%s</style>", (int)(style - page_html), page_html, nonce, page_css);
    style += sizeof before - 1;
    fprintf(out, "%.*s<script nonce=\"%s\">%s</script>%s", (int)(script - style), style, nonce, page_js,
            script + sizeof between - 1);
    if (fclose(out)) return free(text), (struct answer){0};
    struct answer a = owned(MHD_HTTP_OK, text, size, "text/html; charset=utf-8");
    snprintf(policy, sizeof policy,
             "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
             nonce, nonce);
    add_header(a.response, "Content-Security-Policy", policy);
    return a;
}

/* The browser came with the token in its address: it gets the cookie, and an address without the token. */
static struct answer welcome(const struct page_access *access)
{
    char cookie[HEADER_MAX];
    struct answer a = line(MHD_HTTP_SEE_OTHER, "see /\n");
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax", access->cookie,
             access->token);
    add_header(a.response, MHD_HTTP_HEADER_SET_COOKIE, cookie);
    add_header(a.response, MHD_HTTP_HEADER_LOCATION, "/");
    explicit_bzero(cookie, sizeof cookie);
    return a;
}

static struct answer metrics(struct page_hub *hub)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out) return (struct answer){0};
    pthread_mutex_lock(&hub->lock);
    page_metrics_write(&hub->run, out);
    pthread_mutex_unlock(&hub->lock);
    if (fclose(out)) return free(text), (struct answer){0};
    return owned(MHD_HTTP_OK, text, size, "text/plain; version=0.0.4; charset=utf-8");
}

/* Strangers learn only whether the data is current. */
static struct answer health(struct page_hub *hub, bool admitted)
{
    struct answer a;
    pthread_mutex_lock(&hub->lock);
    const struct page_run *run = &hub->run;
    if (run->current)
        a = line(MHD_HTTP_OK, "ok\n");
    else
        a = line(MHD_HTTP_SERVICE_UNAVAILABLE, "%s\n", admitted ? run->reason : "the data is not current");
    pthread_mutex_unlock(&hub->lock);
    return a;
}

static struct answer status_json(struct page_hub *hub)
{
    struct answer a;
    pthread_mutex_lock(&hub->lock);
    struct page_text *text = page_message_status(&hub->run);
    if (text) {
        a = owned(MHD_HTTP_OK, text->data, text->size, "application/json");
        text->data = NULL;
    } else {
        a = line(MHD_HTTP_SERVICE_UNAVAILABLE, "%s\n", hub->run.reason);
    }
    pthread_mutex_unlock(&hub->lock);
    page_text_drop(text);
    return a;
}

static struct answer events(struct page_hub *hub, struct MHD_Connection *connection)
{
    struct answer a = {.code = MHD_HTTP_OK, .response = page_stream_open(hub, connection)};
    if (!a.response) {
        a = line(MHD_HTTP_SERVICE_UNAVAILABLE, "%d pages are open, which is the limit\n", PAGE_STREAMS_MAX);
        add_header(a.response, MHD_HTTP_HEADER_RETRY_AFTER, "10");
        return a;
    }
    add_header(a.response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    add_header(a.response, "X-Accel-Buffering", "no"); /* nginx would collect the events */
    return a;
}

/* --- a request ---------------------------------------------------------------------------------------------------- */

static struct answer refuse(enum page_verdict verdict)
{
    if (verdict == PAGE_WRONG_HOST)
        return line(MHD_HTTP_FORBIDDEN,
                    "This page answers to names of its own machine. For others, start it with --token FILE.\n");
    struct answer a = line(MHD_HTTP_UNAUTHORIZED, "This page needs its token: open /?token=TOKEN once, or send the "
                                                  "header Authorization: Bearer TOKEN.\n");
    add_header(a.response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"atoll\"");
    return a;
}

static const char *look(struct MHD_Connection *c, enum MHD_ValueKind kind, const char *key)
{
    return MHD_lookup_connection_value(c, kind, key);
}

static struct answer respond(struct page_server *server, struct MHD_Connection *c, const char *path, bool *stream_p)
{
    const struct page_access *access = server->access;
    const char *token = look(c, MHD_GET_ARGUMENT_KIND, "token");
    const struct page_request request = {
        .host = look(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST),
        .authorization = look(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION),
        .cookie = access->token[0] ? look(c, MHD_COOKIE_KIND, access->cookie) : NULL,
    };
    bool is_page = !strcmp(path, "/");
    if (is_page && token && page_access_knows(access, token)) return welcome(access);
    enum page_verdict verdict = page_access_judge(access, &request);
    if (!strcmp(path, "/healthz") && verdict != PAGE_WRONG_HOST) return health(server->hub, verdict == PAGE_ADMIT);
    if (verdict != PAGE_ADMIT) return refuse(verdict);
    if (is_page) return page();
    if (!strcmp(path, "/metrics")) return metrics(server->hub);
    if (!strcmp(path, "/status.json")) return status_json(server->hub);
    if (strcmp(path, "/events") != 0)
        return line(MHD_HTTP_NOT_FOUND, "there is /, /metrics, /status.json, /healthz and /events\n");
    *stream_p = true;
    return events(server->hub, c);
}

static struct page_peer *peer_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* Called when the head of a request is complete. A body is not read: the connection ends with the answer. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **context)
{
    struct page_server *server = cls;
    bool stream = false, get = !strcmp(method, MHD_HTTP_METHOD_GET), head = !strcmp(method, MHD_HTTP_METHOD_HEAD);
    struct answer a;
    (void)version, (void)upload, (void)upload_size, (void)context;
    if (get || head) {
        a = respond(server, c, path, &stream);
    } else {
        a = line(MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        add_header(a.response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    if (!a.response) return MHD_NO;
    page_guard_asked(&server->guard, peer_of(c), stream && get);
    if (!stream || head) add_header(a.response, MHD_HTTP_HEADER_CONNECTION, "close");
    add_header(a.response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    add_header(a.response, "X-Content-Type-Options", "nosniff");
    add_header(a.response, "Referrer-Policy", "no-referrer");
    add_header(a.response, "Cross-Origin-Resource-Policy", "same-origin");
    enum MHD_Result result = MHD_queue_response(c, a.code, a.response);
    MHD_destroy_response(a.response);
    return result;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct page_server *server = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        *context = page_guard_open(&server->guard, info ? info->connect_fd : -1);
    } else {
        page_guard_closed(&server->guard, *context);
        *context = NULL;
    }
}

/* The library reports broken requests of strangers, too. */
static void on_log(void *cls, const char *fmt, va_list args)
{
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = 0;
    log_debug("%s", text);
}

/* --- interface ---------------------------------------------------------------------------------------------------- */

enum status page_server_start(struct page_server *server, int fd, const struct page_access *access,
                              struct page_hub *hub, struct err *err)
{
    sigset_t all, old;
    server->access = access;
    server->hub = hub;
    page_guard_init(&server->guard);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* the main thread handles signals */
    server->daemon =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                         on_request, server, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)PAGE_CONNECTIONS_MAX,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)PAGE_MEMORY, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)PAGE_IDLE_S, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!server->daemon) return err_set(err, STATUS_IO, "cannot start the web server: %s", strerror(error));
    return STATUS_OK;
}

void page_server_sweep(struct page_server *server)
{
    page_guard_sweep(&server->guard);
}

void page_server_stop(struct page_server *server)
{
    page_hub_end(server->hub);
    MHD_stop_daemon(server->daemon);
    pthread_mutex_destroy(&server->guard.lock);
}
