#include "wire/zmq/zmq_path.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

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
