/* What options, fcntl commands, ioctls and flags do to a stream. One end drives: it sets them and looks; the other one is its peer, which
 * does what it is told on the connection itself.
 *   options server|client CASE-WHEN PORT
 * WHEN: before (set before connect), during (on a connection that has carried bytes), listener (set on the listening socket: the end that
 * accepts drives), spawned (as listener, but by a process that was spawned with it), duplicate (set on a duplicate, before connect), given (on
 * a connection, by a process that was spawned with it and has ended), anew (on a connection that is dissolved and made anew). */
#include "bed.h"
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#ifndef TCP_CM_INQ
#define TCP_CM_INQ TCP_INQ
#endif

enum { BEFORE, DURING, LISTENER, SPAWNED, DUPLICATE, GIVEN, ANEW };

/* -- the peer -- */
struct order {
    char what; /* 'e'cho, 's'end, 'r'ead and answer with a byte, 'f'lags: send 8 bytes with them, 'b'ye */
    uint32_t count;
} __attribute__((packed));

static unsigned char data[1 << 22];

static void order(int fd, char what, uint32_t count) {
    struct order order = {what, count};
    send_all(fd, &order, sizeof order);
}

static void hurry(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void serve(int fd) {
    struct order order;
    hurry(fd);
    while (recv_upto(fd, &order, sizeof order) == sizeof order && order.what != 'b') {
        if (order.what == 'e' || order.what == 'r') recv_all(fd, data, order.count);
        if (order.what == 's') {
            uint64_t seed = order.count;
            rng_fill(&seed, data, order.count);
        }
        if (order.what == 'e' || order.what == 's') send_all(fd, data, order.count);
        if (order.what == 'r') send_all(fd, "k", 1);
        if (order.what == 'f') send(fd, "flagged!", 8, (int)order.count | MSG_NOSIGNAL);
    }
    close(fd);
}

/* -- the driver -- */
static int available(int fd) {
    int count = -1;
    if (ioctl(fd, FIONREAD, &count)) die("FIONREAD");
    return count;
}

static void arrive(int fd, int count) {
    int64_t until = now_ms() + 20000;
    struct pollfd readable = {fd, POLLIN, 0};
    poll(&readable, 1, 20000);
    while (available(fd) < count) {
        expect(now_ms() < until, "what was asked for arrives");
        usleep(200);
    }
}

/* A read with room for control messages, which are told of without what is different each time. */
static void tell_read(int fd, const char *name, size_t want, int flags) {
    unsigned char bytes[512] = {0};
    char control[256], text[256] = "";
    struct iovec part = {bytes, want};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, flags);
    const char *result = outcome(got);
    if (got >= 0) {
        for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
            int value = each->cmsg_type == TCP_CM_INQ && each->cmsg_level == IPPROTO_TCP ? *(int *)CMSG_DATA(each) : -1;
            size_t at = strlen(text);
            snprintf(text + at, sizeof text - at, " [%d/%d of %zu: %d]", each->cmsg_level, each->cmsg_type, (size_t)each->cmsg_len, value);
        }
    }
    say("%s: %s, flags %x, %08x%s", name, result, got < 0 ? 0 : message.msg_flags, (unsigned)hash_more(HASH_START, bytes, want), text);
}

static void one_exchange(int fd) {
    unsigned char bytes[300];
    memset(bytes, 'x', sizeof bytes);
    order(fd, 'e', sizeof bytes);
    send_all(fd, bytes, sizeof bytes);
    arrive(fd, sizeof bytes);
    struct pollfd both = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    poll(&both, 1, 0);
    say("poll %x", both.revents);
    tell_read(fd, "peek", 50, MSG_PEEK);
    tell_read(fd, "peek", 50, MSG_PEEK);
    tell_read(fd, "read", 100, 0);
    tell_read(fd, "peek", 50, MSG_PEEK);
    tell_read(fd, "read", 200, MSG_WAITALL);
    say("left %d", available(fd));
    tell_read(fd, "read", 1, MSG_DONTWAIT);
}

struct value {
    int level, name;
    const void *value;
    socklen_t size;
};

static const struct value *wanted;
static struct value wanted_here;

static void want(int level, int name, const void *value, socklen_t size) {
    wanted_here = (struct value){level, name, value, size};
    wanted = &wanted_here;
}

static void set_wanted(int fd) {
    if (wanted) say("set %d/%d: %s", wanted->level, wanted->name, outcome(setsockopt(fd, wanted->level, wanted->name, wanted->value, wanted->size)));
}

/* The same by another program: `options set FD LEVEL NAME NUMBER`. Only for numbers. */
static void set_by_another(int fd) {
    char texts[4][24], program[] = "/proc/self/exe", how[] = "set";
    int numbers[4] = {fd, wanted->level, wanted->name, *(const int *)wanted->value}, status;
    char *arguments[] = {program, how, texts[0], texts[1], texts[2], texts[3], NULL};
    extern char **environ;
    pid_t child;
    for (int i = 0; i < 4; i++) snprintf(texts[i], sizeof texts[i], "%d", numbers[i]);
    fcntl(fd, F_SETFD, 0);
    if (posix_spawn(&child, program, NULL, NULL, arguments, environ)) die("posix_spawn");
    waitpid(child, &status, 0);
    expect(status == 0, "the other program sets it");
    fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static struct sockaddr_in6 loopback(int port) {
    return (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
}

/* Of the next sockets: 0, or IPPROTO_MPTCP. */
static int protocol;

static int listener_at(int port) {
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, protocol), on = 1;
    struct sockaddr_in6 address = loopback(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512)) die("listen");
    return listener;
}

static int connected_to(int port, int when) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, protocol);
    struct sockaddr_in6 address = loopback(port);
    if (when == BEFORE) set_wanted(fd);
    if (when == DUPLICATE) {
        int other = dup(fd);
        set_wanted(other);
        close(other);
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    if (when == ANEW) {
        struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
        set_wanted(fd);
        if (connect(fd, &nowhere, sizeof nowhere)) die("connect to nowhere");
        if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect again");
    }
    return fd;
}

/* A connection with what is wanted set, as WHEN says; under --eager its first bytes have gone by a lane, if it may have one. */
static int connection(int port, int when) {
    static int listener = -1;
    int fd;
    if (when == LISTENER || when == SPAWNED) {
        if (listener < 0) {
            listener = listener_at(port);
            if (when == LISTENER)
                set_wanted(listener);
            else
                set_by_another(listener);
        }
        fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
    } else {
        fd = connected_to(port, when);
    }
    unsigned char bytes[100] = {0};
    hurry(fd);
    if (when == DURING) {
        order(fd, 'e', sizeof bytes);
        send_all(fd, bytes, sizeof bytes);
        recv_all(fd, bytes, sizeof bytes);
        set_wanted(fd);
    }
    if (when == GIVEN) {
        set_by_another(fd);
        for (int i = 0; i < 60; i++) {
            order(fd, 'e', sizeof bytes);
            send_all(fd, bytes, sizeof bytes);
            recv_all(fd, bytes, sizeof bytes);
            usleep(2000);
        }
    }
    return fd;
}

static void over(int fd) {
    order(fd, 'b', 0);
    close(fd);
}

/* The kernel stamps what comes in only while somebody wants it, and begins some time after the first one does: that is over here. */
static void stamps_are_on(void) {
    int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), all = (1 << 3) | (1 << 4);
    struct sockaddr_in6 address = loopback(0);
    socklen_t size = sizeof address;
    int64_t until = now_ms() + 20000;
    if (bind(fd, (struct sockaddr *)&address, size) || getsockname(fd, (struct sockaddr *)&address, &size)) die("bind");
    if (connect(fd, (struct sockaddr *)&address, size)) die("connect");
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &all, sizeof all);
    for (int seen = 0; !seen;) {
        char byte = 0, control[128];
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        expect(now_ms() < until, "datagrams are stamped");
        if (send(fd, &byte, 1, 0) != 1 || recvmsg(fd, &message, 0) != 1) die("a datagram to oneself");
        seen = message.msg_controllen > 0;
    }
    /* The socket stays open, and so they are on. */
}

/* -- every number of every level -- */
static void all_options(int port, int when) {
    static const int levels[] = {SOL_SOCKET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP};
    static const struct timeval seconds = {7, 0};
    static const struct linger linger = {1, 7};
    static const uint64_t fast = 1000000000000;
    static const int small = 1, some = 7, large = 100000;
    static const struct value values[] = {
        {SOL_SOCKET, SO_RCVTIMEO, &seconds, sizeof seconds},
        {SOL_SOCKET, SO_SNDTIMEO, &seconds, sizeof seconds},
        {SOL_SOCKET, SO_LINGER, &linger, sizeof linger},
        {SOL_SOCKET, SO_BINDTODEVICE, "lo", 3},
        {SOL_SOCKET, SO_MAX_PACING_RATE, &fast, sizeof fast},
        {SOL_SOCKET, SO_RCVBUF, &large, sizeof large},
        {SOL_SOCKET, SO_SNDBUF, &large, sizeof large},
        {SOL_SOCKET, 32, &large, sizeof large},
        {SOL_SOCKET, 33, &large, sizeof large},
        {SOL_SOCKET, SO_RCVLOWAT, &some, sizeof some},
        {SOL_SOCKET, SO_PEEK_OFF, &some, sizeof some},
        {IPPROTO_TCP, TCP_CONGESTION, "reno", 4},
        {IPPROTO_TCP, TCP_NOTSENT_LOWAT, &large, sizeof large},
        {IPPROTO_TCP, TCP_WINDOW_CLAMP, &large, sizeof large},
    };
    /* What is different each time, or another test's: repair stops TCP, a cork takes its time, a policy is the machine's. */
    static const struct value unlike[] = {
        {SOL_SOCKET, 49, NULL, 0}, {SOL_SOCKET, 55, NULL, 0}, {SOL_SOCKET, 56, NULL, 0}, {SOL_SOCKET, 57, NULL, 0},
        {IPPROTO_IP, 52, NULL, 0}, {SOL_SOCKET, 71, NULL, 0}, {SOL_SOCKET, 77, NULL, 0}, {SOL_SOCKET, 53, NULL, 0}, {IPPROTO_TCP, TCP_INFO, NULL, 0},
        {IPPROTO_TCP, TCP_REPAIR, NULL, 0}, {IPPROTO_TCP, TCP_CORK, NULL, 0}, {IPPROTO_TCP, TCP_CC_INFO, NULL, 0},
        {IPPROTO_TCP, TCP_TIMESTAMP, NULL, 0}, {IPPROTO_TCP, TCP_MAXSEG, NULL, 0}, {IPPROTO_TCP, 35, NULL, 0},
    };
    stamps_are_on();
    for (size_t level = 0; level < 4; level++) {
        for (int name = 1; name < 90; name++) {
            int skip = 0;
            want(levels[level], name, &small, sizeof small);
            for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
                if (values[i].level == levels[level] && values[i].name == name) wanted = &values[i];
            }
            for (size_t i = 0; i < sizeof unlike / sizeof *unlike; i++) {
                skip |= unlike[i].level == levels[level] && unlike[i].name == name;
            }
            if (skip) continue;
            int fd = connection(port, when);
            unsigned char now[256] = {0};
            socklen_t size = sizeof now;
            long rc = getsockopt(fd, levels[level], name, now, &size);
            say("get %d/%d: %s %u %08x", levels[level], name, outcome(rc), size, (unsigned)hash_more(HASH_START, now, sizeof now));
            one_exchange(fd);
            over(fd);
        }
    }
    wanted = NULL;
}

/* -- every flag, sent and received with -- */
static void all_flags(int port, int when) {
    for (int turn = 2; turn < 64; turn++) { /* MSG_OOB is another test's */
        unsigned flag = 1u << turn / 2;
        int fd = connection(port, when), by_message = turn % 2;
        char bytes[8];
        struct iovec part = {"flagged!", 8};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        order(fd, 'r', 8);
        long sent = by_message ? sendmsg(fd, &message, flag | MSG_NOSIGNAL) : send(fd, "flagged!", 8, flag | MSG_NOSIGNAL);
        say("send %x: %s", flag, outcome(sent));
        int64_t until = now_ms() + 300;
        while (!available(fd) && now_ms() < until) usleep(200);
        if (!available(fd)) send_all(fd, "flagged!", 8);
        recv_all(fd, bytes, 1);
        order(fd, 'f', flag);
        int64_t later = now_ms() + 300;
        while (available(fd) < 8 && now_ms() < later) usleep(200);
        int came = available(fd);
        say("sent so by the peer: %d", came);
        if (!came) order(fd, 'f', 0);
        arrive(fd, 8);
        char name[32];
        snprintf(name, sizeof name, "receive %x", flag);
        if (by_message) tell_read(fd, name, 4, (int)flag | (flag == MSG_WAITALL ? 0 : MSG_DONTWAIT));
        else say("%s: %s", name, outcome(recv(fd, bytes, 4, (int)flag | (flag == MSG_WAITALL ? 0 : MSG_DONTWAIT))));
        tell_read(fd, "rest", 8, MSG_DONTWAIT);
        tell_read(fd, "rest", 8, MSG_DONTWAIT);
        over(fd);
    }
}

/* -- every command of fcntl and every ioctl -- */
static void all_controls(int port, int when) {
    for (int command = 0; command < 1050; command++) {
        if (command == 50) command = 1024;
        for (long value = 0; value < 2; value++) {
            if (command == F_SETFL || command == F_SETFD || command == F_GETFL || command == 17) continue;
            int fd = connection(port, when);
            char room[64] = {0};
            int takes_room = (command >= F_GETLK && command <= F_SETLKW) || command == F_SETOWN_EX || command == F_GETOWN_EX || (command >= 36 && command <= 38) ||
                             (command >= 1035 && command <= 1038) || command == 1029 || command >= 1039;
            long rc = takes_room ? fcntl(fd, command, room) : fcntl(fd, command, value);
            int duplicates = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
            say("fcntl %d(%ld): %s", command, value, outcome(duplicates && rc > 0 ? 1 : rc));
            if (duplicates && rc > 0) close((int)rc);
            one_exchange(fd);
            over(fd);
        }
    }
    static const unsigned long requests[] = {FIONREAD, TIOCOUTQ, FIONBIO, FIOCLEX, FIONCLEX, FIOQSIZE, FIOASYNC, FIOSETOWN, SIOCSPGRP, FIOGETOWN,
                                             SIOCGPGRP, SIOCATMARK, SIOCOUTQNSD, SIOCGSTAMP_OLD, SIOCGSTAMPNS_OLD, SIOCGIFCONF, SIOCGIFINDEX, 0x89e0, 0x89e1,
                                             TCGETS, 0x1234};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        int fd = connection(port, when);
        char room[128] = {0};
        say("ioctl %lx: %s", requests[i], outcome(ioctl(fd, requests[i], room)));
        one_exchange(fd);
        over(fd);
    }
    /* All that there are of sockets, by number, without a place for the answer: those of interfaces and routes change nothing so. */
    int fd = connection(port, when);
    for (unsigned long request = 0x8900; request < 0x8a00; request++) {
        long rc = ioctl(fd, request, NULL);
        if (rc >= 0 || errno != ENOTTY) say("ioctl %lx without a place: %s", request, outcome(rc > 0 ? 1 : rc));
        if (rc > 0) close((int)rc); /* SIOCGSKNS */
    }
    one_exchange(fd);
    over(fd);
}

/* -- SO_PEEK_OFF: each peek goes on where the last one ended, reads move it back -- */
static void peek_off(int port, int when) {
    static const int from = 0;
    want(SOL_SOCKET, SO_PEEK_OFF, &from, sizeof from);
    int fd = connection(port, when), now = 99;
    socklen_t size = sizeof now;
    order(fd, 's', 400);
    arrive(fd, 400);
    for (int turn = 0; turn < 3; turn++) tell_read(fd, "peek", 100, MSG_PEEK);
    getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &now, &size);
    say("offset %d", now);
    tell_read(fd, "read", 250, 0);
    tell_read(fd, "peek", 40, MSG_PEEK);
    getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &now, &size);
    say("offset %d", now);
    tell_read(fd, "read", 150, MSG_WAITALL);
    over(fd);
}

/* -- TCP_INQ: how much is left behind what was read -- */
static void inq(int port, int when) {
    static const int on = 1;
    want(IPPROTO_TCP, TCP_INQ, &on, sizeof on);
    int fd = connection(port, when);
    order(fd, 's', 500);
    arrive(fd, 500);
    tell_read(fd, "peek", 100, MSG_PEEK);
    tell_read(fd, "read", 100, 0);
    tell_read(fd, "read", 400, MSG_WAITALL);
    /* Room for less than that, and for none. */
    for (size_t room = 0; room < 26; room += 5) {
        char control[32], byte;
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
        order(fd, 's', 1);
        arrive(fd, 1);
        ssize_t got = recvmsg(fd, &message, 0);
        say("room %zu: %s, %zu, flags %x", room, outcome(got), (size_t)message.msg_controllen, message.msg_flags);
    }
    order(fd, 's', 10);
    order(fd, 'b', 0);
    arrive(fd, 10);
    struct pollfd end = {fd, POLLRDHUP, 0};
    expect(poll(&end, 1, 20000) == 1, "the peer closes");
    tell_read(fd, "read", 10, 0);
    tell_read(fd, "end", 10, 0);
    close(fd);
}

/* -- SO_TIMESTAMP: a control message with each read of what came after -- */
static void stamps(int port, int when) {
    static const int on = 1, all = (1 << 3) | (1 << 4); /* SOF_TIMESTAMPING_RX_SOFTWARE, _SOFTWARE */
    static const int names[] = {SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, 63, 64, 65};
    stamps_are_on();
    for (size_t i = 0; i < (when == LISTENER || when == SPAWNED ? 1 : 6); i++) {
        int ing = names[i] == SO_TIMESTAMPING || names[i] == 65;
        want(SOL_SOCKET, names[i], ing ? &all : &on, sizeof on);
        int fd = connection(port, when);
        order(fd, 's', 100);
        arrive(fd, 100);
        tell_read(fd, "read", 100, MSG_WAITALL);
        over(fd);
    }
}

/* -- SO_MAX_PACING_RATE -- */
static void slow(int port, int when) {
    static const unsigned rate = 10 << 20;
    want(SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
    int fd = connection(port, when);
    char byte;
    int64_t began = now_ms();
    order(fd, 'r', sizeof data);
    send_all(fd, data, sizeof data);
    recv_all(fd, &byte, 1);
    say("4 MiB at 10 MiB a second take a fifth of a second or more: %d", now_ms() - began >= 200);
    over(fd);
}

/* -- a filter that drops all segments of 1000 bytes and more -- */
static void filter(int port, int when) {
    static struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 1000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, 0x7fffffff),
    };
    static const struct sock_fprog program = {4, code};
    want(SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
    int fd = connection(port, when);
    order(fd, 's', 100);
    arrive(fd, 100);
    say("short ones come");
    recv_all(fd, data, 100);
    order(fd, 's', 5000);
    int64_t until = now_ms() + 300;
    while (available(fd) < 5000 && now_ms() < until) usleep(500);
    say("long ones do not: %d", available(fd) == 0);
    close(fd);
}

/* -- TCP_ZEROCOPY_RECEIVE: what poll shows can be had, by the call or by the read that it asks for -- */
static void zerocopy(int port, int when) {
    struct {
        uint64_t address;
        uint32_t length, recv_skip_hint, inq;
        int32_t err;
        uint64_t copybuf_address;
        int32_t copybuf_len;
        uint32_t flags;
    } receive;
    enum { ROOM = 1 << 20 };
    int fd = connection(port, when);
    unsigned char bytes[100] = {0};
    order(fd, 'e', sizeof bytes);
    send_all(fd, bytes, sizeof bytes);
    recv_all(fd, bytes, sizeof bytes);
    void *map = mmap(NULL, ROOM, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) die("mmap of the socket");
    /* What waits in a ring already, and a stream. */
    for (int turn = 0; turn < 2; turn++) {
        size_t whole = turn ? 3 << 20 : 8000, have = 0;
        uint64_t hash = HASH_START;
        int64_t until = now_ms() + 10000;
        order(fd, 's', whole);
        if (!turn) arrive(fd, whole);
        while (have < whole) {
            struct pollfd readable = {fd, POLLIN, 0};
            expect(now_ms() < until, "what poll shows can be had");
            poll(&readable, 1, 10000);
            memset(&receive, 0, sizeof receive);
            receive.address = (uint64_t)map;
            receive.length = ROOM;
            socklen_t size = sizeof receive;
            if (getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &receive, &size)) die("TCP_ZEROCOPY_RECEIVE");
            hash = hash_more(hash, map, receive.length);
            have += receive.length;
            while (receive.recv_skip_hint > 0) {
                ssize_t got = recv(fd, data, receive.recv_skip_hint, 0);
                if (got <= 0) die("recv");
                hash = hash_more(hash, data, got);
                have += got;
                receive.recv_skip_hint -= got;
            }
        }
        say("%zu bytes, %016lx", have, (unsigned long)hash);
    }
    munmap(map, ROOM);
    over(fd);
}

/* -- O_ASYNC: SIGIO -- */
static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

static void asynchronous(int port, int when) {
    signal(SIGIO, count_signal);
    for (int by_ioctl = 0; by_ioctl < 2; by_ioctl++) {
        int fd = -1, on = 1;
        signals = 0;
        if (when == BEFORE) {
            fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        } else {
            fd = connection(port, when);
        }
        fcntl(fd, F_SETOWN, getpid());
        long rc = by_ioctl ? ioctl(fd, FIOASYNC, &on) : fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC);
        say("asked for signals: %s", outcome(rc));
        if (when == BEFORE) {
            struct sockaddr_in6 address = loopback(port);
            while (connect(fd, (struct sockaddr *)&address, sizeof address) && errno == EINTR) {}
        }
        signals = 0;
        order(fd, 's', 100);
        arrive(fd, 100);
        int64_t until = now_ms() + 2000;
        while (!signals && now_ms() < until) usleep(1000);
        say("got one: %d", signals > 0);
        recv_all(fd, data, 100);
        over(fd);
    }
}

/* -- Linux AIO: a list in memory names the descriptor -- */
static void aio(int port, int when) {
    int fd = connection(port, when);
    char bytes[9] = "12345678";
    aio_context_t context = 0;
    struct iocb job = {.aio_fildes = fd, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (uint64_t)bytes, .aio_nbytes = 8}, *jobs = &job;
    struct io_event event;
    say("a context: %s", outcome(syscall(SYS_io_setup, 4, &context)));
    order(fd, 'e', 16);
    send_all(fd, "abcdefgh", 8);
    say("a write: %s", outcome(syscall(SYS_io_submit, context, 1, &jobs)));
    say("ended: %s", outcome(syscall(SYS_io_getevents, context, 1, 1, &event, NULL)));
    say("with %lld", (long long)event.res);
    arrive(fd, 16);
    tell_read(fd, "read", 8, 0);
    memset(bytes, 0, sizeof bytes);
    job.aio_lio_opcode = IOCB_CMD_PREAD;
    say("a read: %s", outcome(syscall(SYS_io_submit, context, 1, &jobs)));
    say("ended: %s", outcome(syscall(SYS_io_getevents, context, 1, 1, &event, NULL)));
    say("with %lld, %s", (long long)event.res, bytes);
    over(fd);
}

/* -- a thread with descriptors of its own: the number is another file's there -- */
static void *apart(void *argument) {
    int fd = *(int *)argument;
    char byte;
    if (unshare(CLONE_FILES)) die("unshare");
    close(fd);
    int null = open("/dev/null", O_RDONLY);
    if (null != fd && dup2(null, fd) < 0) die("dup2");
    say("nothing to read there: %s", outcome(read(fd, &byte, 1)));
    return NULL;
}

static void unshared(int port, int when) {
    int fd = connection(port, when);
    pthread_t thread;
    order(fd, 's', 100);
    arrive(fd, 100);
    if (pthread_create(&thread, NULL, apart, &fd)) die("pthread_create");
    pthread_join(thread, NULL);
    tell_read(fd, "what was there", 100, MSG_WAITALL);
    one_exchange(fd);
    over(fd);
    fd = connection(port, when);
    one_exchange(fd);
    over(fd);
}

/* -- a socket in a sockmap whose program drops all that comes -- */
static void sockmap(int port, int when) {
    struct { /* union bpf_attr, for the commands below */
        uint32_t words[4];
        uint64_t longs[14];
    } attributes = {{15, 4, 4, 4}, {0}}; /* BPF_MAP_TYPE_SOCKMAP */
    static const struct {
        uint8_t code, registers;
        int16_t offset;
        int32_t value;
    } drop[2] = {{0xb7, 0, 0, 0}, {0x95, 0, 0, 0}}; /* r0 = SK_DROP; exit */
    int fd = connection(port, when);
    uint32_t key = 0, value = fd;
    long map = syscall(SYS_bpf, 0, &attributes, sizeof attributes);
    say("a map: %s", outcome(map > 0 ? 1 : map));
    memset(&attributes, 0, sizeof attributes);
    attributes.words[0] = 14; /* BPF_PROG_TYPE_SK_SKB */
    attributes.words[1] = 2;
    attributes.words[2] = (uint32_t)(uintptr_t)drop;
    attributes.words[3] = (uint64_t)(uintptr_t)drop >> 32;
    attributes.longs[0] = (uint64_t)(uintptr_t)"GPL";
    long program = syscall(SYS_bpf, 5, &attributes, sizeof attributes);
    say("a program: %s", outcome(program > 0 ? 1 : program));
    memset(&attributes, 0, sizeof attributes);
    attributes.words[0] = map;
    attributes.words[1] = program;
    attributes.words[2] = 38; /* BPF_SK_SKB_VERDICT */
    say("attached: %s", outcome(syscall(SYS_bpf, 8, &attributes, sizeof attributes)));
    memset(&attributes, 0, sizeof attributes);
    attributes.words[0] = map;
    attributes.longs[0] = attributes.longs[1] = 0;
    memcpy(&attributes.words[2], &(uint64_t){(uintptr_t)&key}, 8);
    attributes.longs[0] = (uintptr_t)&value;
    say("the socket in it: %s", outcome(syscall(SYS_bpf, 2, &attributes, sizeof attributes)));
    order(fd, 's', 100);
    int64_t until = now_ms() + 300;
    while (available(fd) < 100 && now_ms() < until) usleep(500);
    say("nothing comes: %d", available(fd) == 0);
    close(fd);
}

/* -- what is no option of a stream's, and ends lanes: repair, kernel TLS, tee, and MSG_FASTOPEN -- */
static void rare(int port, int when) {
    static const char *const names[] = {"repair", "upper layer", "tee", "fast open", "fast open, message"};
    for (int what = 0; what < 5; what++) {
        int fd = connection(port, when), on = 1, off = 0, ends[2];
        struct sockaddr_in6 address = loopback(port);
        struct order told = {'r', 3};
        struct iovec part = {&told, sizeof told};
        struct msghdr message = {.msg_name = &address, .msg_namelen = sizeof address, .msg_iov = &part, .msg_iovlen = 1};
        long rc = -1;
        if (pipe(ends)) die("pipe");
        if (what == 0) rc = setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on) | setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof off);
        if (what == 1) rc = setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 4);
        if (what == 2) rc = tee(fd, ends[1], 100, SPLICE_F_NONBLOCK);
        if (what >= 3) {
            /* A new socket, which it connects. */
            close(fd);
            fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
            rc = what == 3 ? sendto(fd, &told, sizeof told, MSG_FASTOPEN, (struct sockaddr *)&address, sizeof address) : sendmsg(fd, &message, MSG_FASTOPEN);
            hurry(fd);
            send_all(fd, "abc", 3);
            recv_all(fd, data, 1);
        }
        say("%s: %s", names[what], outcome(rc));
        one_exchange(fd);
        over(fd);
        close(ends[0]), close(ends[1]);
    }
}

/* -- a socket that listens for MPTCP: the first peer connects by plain TCP, the second one by MPTCP -- */
static void mptcp(int port, int when) {
    protocol = IPPROTO_MPTCP;
    for (int turn = 0; turn < 2; turn++) {
        int fd = connection(port, when), is = 0;
        socklen_t size = sizeof is;
        getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &is, &size);
        say("accepted a socket of protocol %d", is);
        for (int exchange = 0; exchange < 20; exchange++) one_exchange(fd);
        over(fd);
    }
}

static const struct {
    const char *name;
    void (*drive)(int port, int when);
    int connections; /* where the driver accepts */
} cases[] = {
    {"options", all_options, 0}, {"flags", all_flags, 0},       {"controls", all_controls, 0}, {"peek_off", peek_off, 1}, {"inq", inq, 1},
    {"stamps", stamps, 1},       {"slow", slow, 1},                       {"filter", filter, 1},     {"zerocopy", zerocopy, 1},
    {"async", asynchronous, 0}, {"aio", aio, 0},            {"unshared", unshared, 0},     {"sockmap", sockmap, 0},
    {"mptcp", mptcp, 2},       {"rare", rare, 0},
};

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "set")) {
        int number = atoi(argv[5]);
        return setsockopt(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), &number, sizeof number) != 0;
    }
    expect(argc == 4, "usage: server|client CASE-WHEN PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]), when = DURING;
    char *at = strchr(argv[2], '-');
    expect(at != NULL, "CASE-WHEN");
    *at++ = 0;
    if (!strcmp(at, "before")) when = BEFORE;
    if (!strcmp(at, "listener")) when = LISTENER;
    if (!strcmp(at, "spawned")) when = SPAWNED;
    if (!strcmp(at, "duplicate")) when = DUPLICATE;
    if (!strcmp(at, "given")) when = GIVEN;
    if (!strcmp(at, "anew")) when = ANEW;
    int drives = is_server == (when == LISTENER || when == SPAWNED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[2])) continue;
        if (drives) {
            cases[i].drive(port, when);
        } else if (is_server) {
            int listener = listener_at(port), fd;
            char byte;
            sync_open(1);
            fcntl(wait_fd, F_SETFL, O_NONBLOCK);
            struct pollfd both[2] = {{listener, POLLIN, 0}, {wait_fd, POLLIN, 0}};
            /* One connection at a time, until the driver says that it has done. */
            while (poll(both, 2, -1) > 0 && !(both[1].revents & POLLIN)) {
                if ((fd = accept(listener, NULL, NULL)) < 0) continue;
                if (when == ANEW && recv(fd, &byte, 1, MSG_PEEK) < 1)
                    close(fd); /* dissolved */
                else
                    serve(fd);
            }
        } else {
            for (int turn = 0; turn < cases[i].connections; turn++) {
                protocol = turn == 1 ? IPPROTO_MPTCP : 0;
                serve(connected_to(port, DURING));
            }
        }
        if (!is_server && drives) {
            sync_open(0);
            tell();
        }
        say("done");
        return 0;
    }
    expect(0, "the case is known");
    return 71;
}
