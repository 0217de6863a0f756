#include "wire/zmq/zmq_path.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "wire/zmq/transport_zmq.h"

static bool read_info(int fd, struct tcp_info *info)
{
    socklen_t size = sizeof *info;
    return fd >= 0 && !getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) &&
           size >= offsetof(struct tcp_info, tcpi_bytes_retrans) + sizeof info->tcpi_bytes_retrans;
}

bool zmq_path_read(int fd, struct transport_path *out)
{
    struct tcp_info info = {0};
    if (!read_info(fd, &info)) return false;
    *out = (struct transport_path){.acked = info.tcpi_bytes_acked,
                                   .received = info.tcpi_bytes_received,
                                   .unacked = info.tcpi_unacked,
                                   .rtt_us = info.tcpi_rtt};
    return true;
}

bool zmq_path_sent(int fd, uint64_t *sent_p)
{
    struct tcp_info info = {0};
    if (!read_info(fd, &info)) return false;
    *sent_p = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    return true;
}

bool zmq_path_is_own(int fd, const char *endpoint)
{
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    unsigned limit_ms = 0, port = 0;
    if (getpeername(fd, (struct sockaddr *)&peer, &size)) return false;
    if (peer.ss_family == AF_INET) port = ((struct sockaddr_in *)&peer)->sin_port;
    if (peer.ss_family == AF_INET6) port = ((struct sockaddr_in6 *)&peer)->sin6_port;
    const char *colon = strrchr(endpoint, ':');
    if (!port || !colon || ntohs((uint16_t)port) != strtoul(colon + 1, NULL, 10)) return false;
    size = sizeof limit_ms;
    return !getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &size) && limit_ms == ZMQ_BASE_MAXRT_MS;
}
