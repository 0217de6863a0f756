/* atoll relay: a slow link between programs on one machine (cli/link/link_relay.h). Prints the address where it
 * listens, and at the end the totals. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/link/link_relay.h"
#include "cli/link/link_target.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "coordinator/run_folder.h"
#include "wire/join_target.h"
#include "wire/transport.h"

struct relay_command {
    const char *join, *join_file, *control;
    struct relay_options options;
    struct transport_address coordinator; /* of --join */
    char kept[RELAY_ADDRESS_MAX];         /* HOST:PORT of an earlier relay with this --join-file; "": none */
};

/* "-": standard input; otherwise a FIFO, created if missing. The relay holds it open for writing, so that it never
 * ends. */
static enum status open_control(const char *path, int *fd_p, struct err *err)
{
    *fd_p = STDIN_FILENO;
    if (!strcmp(path, "-")) return STATUS_OK;
    if (mkfifo(path, 0600) && errno != EEXIST)
        return err_set(err, STATUS_IO, "cannot make the FIFO %s: %s", path, strerror(errno));
    *fd_p = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    return *fd_p >= 0 ? STATUS_OK : err_set(err, STATUS_IO, "cannot open the FIFO %s: %s", path, strerror(errno));
}

/* A restarted relay keeps its port, because the worker has read the join file once. */
static void find_kept(struct relay_command *c)
{
    char line[JOIN_LINE_MAX];
    struct transport_address earlier;
    if (c->options.listen || run_folder_read_line(c->join_file, line, sizeof line, NULL) != STATUS_OK ||
        transport_address_parse(&earlier, line, NULL) != STATUS_OK)
        return;
    snprintf(c->kept, sizeof c->kept, "%.*s", (int)sizeof c->kept - 1, link_target_host(&earlier));
    c->options.listen = c->kept;
}

static enum status find_coordinator(struct relay_command *c, struct err *err)
{
    if (!c->join_file)
        return err_set(err, STATUS_INVALID, "--join needs --join-file FILE: where to write the join line of the relay");
    if (link_target_find(&c->coordinator, c->join, err) != STATUS_OK) return err_prefix(err, "--join");
    c->options.to = link_target_host(&c->coordinator);
    find_kept(c);
    return STATUS_OK;
}

/* Writes the join line with the address of the relay. */
static enum status write_join_file(const struct relay_command *c, const char *address, struct err *err)
{
    struct transport_address through = c->coordinator;
    char line[JOIN_LINE_MAX];
    snprintf(through.endpoint, sizeof through.endpoint, "tcp://%s", address);
    transport_address_format(&through, line, sizeof line - 1);
    size_t n = strlen(line);
    line[n] = '\n';
    return file_write_private(c->join_file, line, n + 1, err);
}

static enum status serve(struct relay_command *c, struct relay *relay, const char *address, struct err *err)
{
    char spec[LINK_SPEC_MAX];
    if (c->join) TRY(write_join_file(c, address, err));
    printf("%s\n", address);
    fflush(stdout);
    log_info("started: %s to %s, link %s", address, c->options.to, link_spec_print(&c->options.spec, spec));
    TRY(relay_run(relay, err));
    struct relay_totals t = relay_totals(relay);
    printf("connections %llu, bytes up %llu, bytes down %llu\n", (unsigned long long)t.connections,
           (unsigned long long)t.up, (unsigned long long)t.down);
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct relay_command *c = ctx;
    struct relay *relay;
    char address[RELAY_ADDRESS_MAX];
    TRY(link_spec_parse(&c->options.spec, o->args[0], err));
    if (!c->options.to == !c->join)
        return err_set(err, STATUS_INVALID, "give the coordinator: --to HOST:PORT, or --join with --join-file");
    if (c->join) TRY(find_coordinator(c, err));
    if (!c->options.listen) c->options.listen = "127.0.0.1:0";
    if (c->control) TRY(open_control(c->control, &c->options.control_fd, err));
    interrupt_catch();
    log_set_name("relay");
    TRY(relay_create(&relay, &c->options, address, err));
    enum status status = serve(c, relay, address, err);
    relay_destroy(relay);
    return status;
}

int cmd_relay(int argc, char **argv)
{
    struct relay_command c = {.options.control_fd = -1};
    const struct option_spec specs[] = {
        {"to", OPTION_TEXT, &c.options.to, "HOST:PORT", "pass connections on to this address"},
        {"join", OPTION_TEXT, &c.join, "JOIN", "pass on to this coordinator: a run folder, or a file with a join line"},
        {"join-file", OPTION_TEXT, &c.join_file, "FILE",
         "write the join line through the relay, for atoll-worker --join"},
        {"listen", OPTION_TEXT, &c.options.listen, "HOST:PORT",
         "listen here; port 0: any free one (default 127.0.0.1:0)"},
        {"control", OPTION_TEXT, &c.control, "FIFO",
         "read commands here, one a line; - is standard input: link SPEC,\n"
         "                           stall [SECONDS], go, cut, down, up, flip BYTES, quit"},
    };
    struct options o = {
        .program = "atoll relay",
        .usage = "SPEC (--to HOST:PORT | --join JOIN --join-file FILE) [options]",
        .about =
            "Emulate a slow link on one machine, without root: relay TCP connections with rates, delay and outages.\n"
            "SPEC is none, or words joined by commas: 100mbit (both ways), up=20mbit, down=100mbit, rtt=50ms,\n"
            "jitter=5ms, outage=60s+10s (from 60 s after the start, for 10 s; may repeat). All connections share the\n"
            "rates. Not modelled: packet loss, and TCP's slow start over the long path.",
        OPTION_SPECS(specs),
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &c);
}
