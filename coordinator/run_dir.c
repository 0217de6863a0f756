#include "coordinator/run_dir.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/number.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/store_disk.h"
#include "wire/endpoint.h"

enum { ADDRESS_MAX = 1024 };

static void path_of(const char *dir, const char *file, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/%s", dir, file);
}

enum status run_dir_check_free(const char *dir, struct err *err)
{
    static const char *const others[] = {"meta.json", "train_000000.bin", "model.safetensors", "key"};
    char path[FILEIO_PATH_MAX];
    path_of(dir, "journal", path);
    if (file_exists(path)) return STATUS_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        path_of(dir, others[i], path);
        if (file_exists(path))
            return err_set(err, STATUS_INVALID, "%.300s contains %s but no run: use another --dir", dir, others[i]);
    }
    return STATUS_OK;
}

/* What a first start makes. The lock is the last: until then no other coordinator starts here. */
static const struct {
    const char *name;
    bool folder;
} made[] = {{"journal", true},      {"tokenizer", true},         {"logs", true},
            {"address", false},     {"config.yaml", false},      {"endpoint", false},
            {"keys", false},        {"metrics.jsonl", false},    {"run_id", false},
            {"worker-keys", false}, {"worker-keys.lock", false}, {"lock", false}};
enum { MADE = sizeof made / sizeof *made, JOURNAL = 0 };

void run_dir_look(struct run_dir_before *before, const char *dir)
{
    char path[FILEIO_PATH_MAX];
    *before = (struct run_dir_before){.existing = dir_existing_length(dir)};
    for (int i = 0; i < MADE; i++) {
        path_of(dir, made[i].name, path);
        before->names |= (unsigned)file_exists(path) << i;
    }
    path_of(dir, STORE_SWITCH, path); /* the journal may be on its way */
    before->begun = before->names >> JOURNAL & 1 || file_exists(path);
}

void run_dir_undo(const struct run_dir_before *before, const char *dir)
{
    char path[FILEIO_PATH_MAX];
    struct err err;
    if (before->begun) return;
    path_of(dir, "checkpoints", path);
    rmdir(path); /* fails if it is not empty */
    for (int i = 0; i < MADE; i++) {
        if (before->names >> i & 1) continue;
        path_of(dir, made[i].name, path);
        if (!made[i].folder)
            unlink(path);
        else if (dir_remove_flat(path, &err) != STATUS_OK)
            log_warn("%s", err.msg);
    }
    dir_remove_made(dir, before->existing);
}

/* An atoll rollback or exclude that was killed behind the point of no return. */
static enum status finish_take_back(const char *dir, struct err *err)
{
    bool switched;
    TRY(store_disk_switch(dir, &switched, err));
    if (switched)
        log_warn("finished taking the run back, which was cut short; its old history is in %.300s/*.taken-back-*", dir);
    return STATUS_OK;
}

enum status run_dir_lock(const char *dir, int *fd_p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    TRY(run_dir_check_free(dir, err));
    TRY(dir_make(dir, err));
    path_of(dir, "lock", path);
    int fd = -1;
    TRY(file_open_plain(path, O_RDWR | O_CREAT, FILE_PUBLIC, &fd, err));
    if (!file_lock(fd, true)) {
        enum status status =
            errno == EWOULDBLOCK
                ? err_set(err, STATUS_EXISTS, "another coordinator serves %.300s: stop it, or use another --dir", dir)
                : err_set(err, STATUS_IO, "cannot lock %.300s: %s", path, strerror(errno));
        close(fd);
        return status;
    }
    enum status finished = finish_take_back(dir, err);
    if (finished != STATUS_OK) {
        close(fd);
        return finished;
    }
    *fd_p = fd;
    static const char *const written[] = {"address", "config.yaml",  "endpoint",   "keys",
                                          "run_id",  "summary.json", "worker-keys"};
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
        path_of(dir, written[i], path);
        temporary_sweep(path);
    }
    return STATUS_OK;
}

enum status run_dir_write_config(const char *dir, const struct config *config, const struct config_sources *sources,
                                 struct err *err)
{
    char path[FILEIO_PATH_MAX], *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return err_set(err, STATUS_NOMEM, "no memory for config.yaml");
    config_print(config, sources, f);
    if (fclose(f)) {
        free(text);
        return err_set(err, STATUS_NOMEM, "no memory for config.yaml");
    }
    path_of(dir, "config.yaml", path);
    enum status status = file_write(path, text, size, err);
    free(text);
    return status;
}

enum status run_dir_write_id(const char *dir, const uint8_t run_id[WIRE_UUID], struct err *err)
{
    char path[FILEIO_PATH_MAX], text[2 * WIRE_UUID + 2];
    number_hex_text(run_id, WIRE_UUID, text);
    text[2 * WIRE_UUID] = '\n';
    path_of(dir, "run_id", path);
    return file_write(path, text, 2 * WIRE_UUID + 1, err);
}

void run_dir_forget(const char *dir, const char *file)
{
    char path[FILEIO_PATH_MAX];
    path_of(dir, file, path);
    unlink(path);
}

/* --- address ------------------------------------------------------------------------------------------------------ */

void run_dir_last_endpoint(const char *dir, const char *listen, char *out, size_t cap)
{
    char path[FILEIO_PATH_MAX];
    void *data;
    size_t size, n = strlen(listen);
    struct endpoint parsed;
    snprintf(out, cap, "%s", listen);
    path_of(dir, "endpoint", path);
    if (n < 2 || strcmp(listen + n - 2, ":*") != 0 || file_read(path, ADDRESS_MAX, &data, &size, NULL) != STATUS_OK)
        return;
    char *line = data;
    line[strcspn(line, "\r\n")] = 0;
    if (endpoint_parse(&parsed, line, false, NULL) == STATUS_OK)
        snprintf(out, cap, "%.*s:%s", (int)(n - 2), listen, parsed.port);
    mem_free(data);
}

/* The address of this machine for other machines. First choice: the source address of the default route (connect sends
 * no packet). Then the first interface that is up, then loopback. */
static void own_address(char out[INET_ADDRSTRLEN])
{
    struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_port = htons(9)}, own = {0};
    socklen_t size = sizeof own;
    struct ifaddrs *list = NULL;
    snprintf(out, INET_ADDRSTRLEN, "127.0.0.1");
    inet_pton(AF_INET, "192.0.2.1", &elsewhere.sin_addr); /* RFC 5737: reserved for documentation */
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && !connect(fd, (const struct sockaddr *)&elsewhere, sizeof elsewhere) &&
                 !getsockname(fd, (struct sockaddr *)&own, &size);
    if (fd >= 0) close(fd);
    if (!found && getifaddrs(&list)) return;
    for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || i->ifa_flags & IFF_LOOPBACK ||
            !(i->ifa_flags & IFF_UP))
            continue;
        memcpy(&own, i->ifa_addr, sizeof own);
        found = true;
    }
    if (found) inet_ntop(AF_INET, &own.sin_addr, out, INET_ADDRSTRLEN);
    if (list) freeifaddrs(list);
}

enum status run_dir_write_address(const char *dir, const char *bound, const char *advertise,
                                  const struct run_keys *keys, char *line, size_t cap, struct err *err)
{
    struct transport_address a = {.has_secret = true};
    char path[FILEIO_PATH_MAX], text[2 * ADDRESS_MAX], host[INET_ADDRSTRLEN];
    bool any = !strncmp(bound, "tcp://0.0.0.0:", 14) || !strncmp(bound, "tcp://[::]:", 11);
    own_address(host);
    if (any)
        snprintf(a.endpoint, sizeof a.endpoint, "tcp://%s%s", host, strrchr(bound, ':'));
    else
        snprintf(a.endpoint, sizeof a.endpoint, "%s", bound);
    memcpy(a.server_key, keys->server_public, sizeof a.server_key);
    memcpy(a.secret, keys->enrol_secret, sizeof a.secret);
    transport_address_format(&a, line, cap);
    int n = snprintf(text, sizeof text, "%s\n", line);
    if (strcmp(advertise, "auto") != 0) {
        char own[sizeof a.endpoint];
        memcpy(own, a.endpoint, sizeof own);
        TRY(endpoint_advertised(a.endpoint, sizeof a.endpoint, advertise, own, err));
        transport_address_format(&a, line, cap);
        snprintf(text + n, sizeof text - (size_t)n, "%s\n", line);
    }
    path_of(dir, "endpoint", path);
    TRY(file_write(path, bound, strlen(bound), err));
    path_of(dir, "address", path);
    return file_write_private(path, text, strlen(text), err);
}

/* Puts another secret into the join lines of RUN/address. */
static enum status address_replace_secret(const char *dir, const uint8_t secret[WIRE_KEY], struct err *err)
{
    char path[FILEIO_PATH_MAX], text[2 * ADDRESS_MAX] = "";
    void *data;
    size_t size, n = 0;
    path_of(dir, "address", path);
    if (!file_exists(path)) return STATUS_OK;
    TRY(file_read(path, sizeof text - 1, &data, &size, err));
    enum status status = STATUS_OK;
    for (char *save = NULL, *line = strtok_r(data, "\n", &save); line && status == STATUS_OK;
         line = strtok_r(NULL, "\n", &save)) {
        struct transport_address a;
        status = transport_address_parse(&a, line, err);
        if (status != STATUS_OK) break;
        memcpy(a.secret, secret, WIRE_KEY);
        a.has_secret = true;
        transport_address_format(&a, text + n, sizeof text - n - 1);
        n += strlen(text + n);
        text[n++] = '\n';
    }
    mem_free(data);
    return status == STATUS_OK ? file_write_private(path, text, n, err) : status;
}

enum status run_dir_renew_enrolment(const char *dir, struct err *err)
{
    struct run_keys keys;
    TRY(run_keys_read(dir, &keys, err));
    enum status status = run_keys_renew(dir, &keys, err);
    if (status == STATUS_OK) status = address_replace_secret(dir, keys.enrol_secret, err);
    explicit_bzero(&keys, sizeof keys);
    return status;
}
