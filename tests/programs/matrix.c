/* Every way to read, with every flag, for sizes round what is there; and what the socket says of itself.
 *   matrix server|client CASE PORT */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <linux/sockios.h>

static unsigned char data[1 << 20];
static const size_t sizes[] = {0, 1, 100, 4095, 4096, 4097, 8000};
#define SIZES (sizeof sizes / sizeof *sizes)

/* The client asks for so many bytes at a time; the server sends them, with no call pending at the client. */
static void feeder(int fd) {
    uint32_t count;
    while (recv_upto(fd, &count, sizeof count) == sizeof count) {
        uint64_t seed = count;
        rng_fill(&seed, data, count);
        send_all(fd, data, count);
    }
}

static int available(int fd) {
    int count = -1;
    if (ioctl(fd, FIONREAD, &count)) die("FIONREAD");
    return count;
}

static void fetch(int fd, uint32_t count) {
    int64_t until = now_ms() + 20000;
    send_all(fd, &count, sizeof count);
    while (available(fd) != (int)count) {
        expect(now_ms() < until, "what was asked for arrives");
        usleep(500);
    }
}

static ssize_t by_read(int fd, void *to, size_t want, int flags) {
    (void)flags;
    return read(fd, to, want);
}

static ssize_t by_recv(int fd, void *to, size_t want, int flags) { return recv(fd, to, want, flags); }

static ssize_t by_recvfrom(int fd, void *to, size_t want, int flags) {
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    ssize_t got = recvfrom(fd, to, want, flags, (struct sockaddr *)&from, &size);
    if (got >= 0) expect(size == 0, "TCP names no sender");
    return got;
}

static ssize_t by_recvmsg(int fd, void *to, size_t want, int flags) {
    struct iovec parts[3] = {{to, want / 3}, {NULL, 0}, {(char *)to + want / 3, want - want / 3}};
    char control[100];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, flags);
    if (got >= 0) expect(message.msg_controllen == 0, "no control message");
    if (got >= 0 && message.msg_flags) say("flags of the message: %x", message.msg_flags);
    return got;
}

static ssize_t by_readv(int fd, void *to, size_t want, int flags) {
    struct iovec parts[2] = {{to, want / 2}, {(char *)to + want / 2, want - want / 2}};
    (void)flags;
    return readv(fd, parts, 2);
}

static ssize_t by_recvmmsg(int fd, void *to, size_t want, int flags) {
    struct iovec parts[2] = {{to, want / 2}, {(char *)to + want / 2, want - want / 2}};
    struct mmsghdr batch[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    int got = recvmmsg(fd, batch, 2, flags | MSG_WAITFORONE, NULL);
    return got < 0 ? got : (ssize_t)batch[0].msg_len + (got > 1 ? batch[1].msg_len : 0) + 100000 * got;
}

static const struct {
    const char *name;
    ssize_t (*call)(int fd, void *to, size_t want, int flags);
    int has_flags;
} ways[] = {{"read", by_read, 0},       {"recv", by_recv, 1},   {"recvfrom", by_recvfrom, 1},
            {"recvmsg", by_recvmsg, 1}, {"readv", by_readv, 0}, {"recvmmsg", by_recvmmsg, 1}};

static const int flags[] = {0, MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_DONTWAIT | MSG_WAITALL,
                            MSG_PEEK | MSG_WAITALL, MSG_OOB | MSG_DONTWAIT, MSG_ERRQUEUE | MSG_DONTWAIT};

static void reads_client(int fd) {
    static unsigned char got[20000];
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        for (size_t with = 0; with < (ways[way].has_flags ? sizeof flags / sizeof *flags : 1); with++) {
            for (size_t there = 0; there < SIZES; there++) {
                for (size_t want = 0; want < SIZES; want++) {
                    /* What would wait for ever is not asked. */
                    int flag = flags[with], whole = flag & MSG_WAITALL && !(flag & MSG_DONTWAIT);
                    if (!(flag & MSG_DONTWAIT) && (sizes[there] == 0 || (whole && sizes[want] > sizes[there]))) continue;
                    fetch(fd, sizes[there]);
                    memset(got, 0, sizeof got);
                    ssize_t count = ways[way].call(fd, got, sizes[want], flag);
                    int error = errno;
                    uint64_t hash = hash_more(HASH_START, got, flag & MSG_TRUNC ? 0 : sizes[want]);
                    errno = error;
                    say("%s %x: %zu of %zu: %s %08x, left %d", ways[way].name, flag, sizes[want], sizes[there], outcome(count),
                        (unsigned)hash, available(fd));
                    while (available(fd) > 0) recv(fd, got, sizeof got, MSG_DONTWAIT);
                }
            }
        }
    }
}

/* -- what the socket says of itself while the bytes are elsewhere -- */
static void says_client(int fd) {
    int value = -1, zero = 0;
    struct tcp_info info;
    socklen_t size = sizeof value;
    say("SO_ERROR: %s", outcome(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size)));
    say("is %d", value);
    size = sizeof info;
    say("TCP_INFO: %s", outcome(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size)));
    say("state %d", info.tcpi_state);
    for (size_t there = 0; there < SIZES; there++) {
        fetch(fd, sizes[there]);
        say("SIOCATMARK: %s %d", outcome(ioctl(fd, SIOCATMARK, &value)), value);
        say("sockatmark: %s", outcome(sockatmark(fd)));
        say("SIOCINQ: %s %d", outcome(ioctl(fd, SIOCINQ, &value)), value);
        struct pollfd both = {fd, POLLIN | POLLRDNORM | POLLPRI | POLLOUT | POLLWRNORM | POLLRDHUP, 0};
        say("poll: %s %x", outcome(poll(&both, 1, 0)), both.revents);
        fd_set reads, writes, others;
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_ZERO(&others);
        FD_SET(fd, &reads);
        FD_SET(fd, &writes);
        FD_SET(fd, &others);
        say("select: %s", outcome(select(fd + 1, &reads, &writes, &others, &(struct timeval){0, 0})));
        say("sets: %d %d %d", !!FD_ISSET(fd, &reads), !!FD_ISSET(fd, &writes), !!FD_ISSET(fd, &others));
        while (available(fd) > 0) recv(fd, data, sizeof data, MSG_DONTWAIT);
    }
    say("O_NONBLOCK: %s", outcome(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)));
    say("read: %s", outcome(read(fd, data, 1)));
    say("FIONBIO: %s", outcome(ioctl(fd, FIONBIO, &zero)));
    say("blocks: %d", !(fcntl(fd, F_GETFL) & O_NONBLOCK));
    /* A low-water mark: not readable below it. */
    value = 500, size = sizeof value;
    say("SO_RCVLOWAT: %s", outcome(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, size)));
    fetch(fd, 400);
    struct pollfd readable = {fd, POLLIN, 0};
    say("below: %s", outcome(poll(&readable, 1, 0)));
    uint32_t more = 200;
    send_all(fd, &more, sizeof more);
    say("above: %s", outcome(poll(&readable, 1, 10000)));
    say("read: %s", outcome(recv(fd, data, sizeof data, 0)));
}

/* -- one write, far larger than any buffer: the other end reads it in pieces of every size -- */
static void large_server(int fd) {
    static unsigned char large[6 << 20];
    uint64_t seed = 21;
    rng_fill(&seed, large, sizeof large);
    ssize_t sent = send(fd, large, sizeof large, 0);
    say("sent: %s", outcome(sent));
    shutdown(fd, SHUT_WR);
}

static void large_client(int fd) {
    uint64_t seed = 5, hash = HASH_START, total = 0;
    for (;;) {
        size_t want = rng_next(&seed) % 3 ? 1 + rng_next(&seed) % 70000 : 1 + rng_next(&seed) % 9;
        ssize_t got = recv(fd, data, want, rng_next(&seed) % 4 ? 0 : MSG_WAITALL);
        if (got < 0) die("recv");
        if (got == 0) break;
        hash = hash_more(hash, data, got), total += got;
    }
    say("%lu bytes %016lx", total, hash);
}

static const struct bed_case cases[] = {
    {"reads", feeder, reads_client}, {"says", feeder, says_client}, {"large", large_server, large_client}, {NULL, NULL, NULL},
};

int main(int argc, char **argv) { return run_case(argc, argv, cases); }
