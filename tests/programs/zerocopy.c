/* MSG_ZEROCOPY: the option, the numbers, the notices and what tells of them.
 *   zerocopy server|client CASE PORT       BED_FAMILY: 4 (or nothing), 6, mapped */
#include "bed.h"
#include <linux/capability.h>
#include <linux/errqueue.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ZC (MSG_ZEROCOPY | MSG_NOSIGNAL)
#define LARGE (64 << 20)

static char *data; /* LARGE bytes */

static void set_option(int fd, int value) {
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &value, sizeof value)) die("SO_ZEROCOPY");
}

static int option(int fd) {
    int value = -1;
    socklen_t size = sizeof value;
    if (getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &value, &size)) die("SO_ZEROCOPY");
    return value;
}

/* -- reading notices -- */

struct notice {
    unsigned first, last, code;
};

/* One notice, or 0 if there is none: whatever is wrong with its form ends the program. */
static int read_notice(int fd, struct notice *notice) {
    union { char bytes[256]; struct cmsghdr align; } control;
    struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_ERRQUEUE);
    if (got < 0 && errno == EAGAIN) return 0;
    expect(got == 0, "a notice has no bytes");
    expect(message.msg_flags == MSG_ERRQUEUE, "its flags");
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    expect(cmsg && !CMSG_NXTHDR(&message, cmsg), "one control message");
    expect((cmsg->cmsg_level == SOL_IP && cmsg->cmsg_type == IP_RECVERR) ||
               (cmsg->cmsg_level == SOL_IPV6 && cmsg->cmsg_type == IPV6_RECVERR), "its level and type");
    struct sock_extended_err *error = (void *)CMSG_DATA(cmsg);
    expect(error->ee_origin == SO_EE_ORIGIN_ZEROCOPY && error->ee_errno == 0, "its origin and errno");
    *notice = (struct notice){error->ee_info, error->ee_data, error->ee_code};
    return 1;
}

/* Numbers read so far, which come in order and without a gap; whether each range said COPIED. */
struct numbers {
    unsigned next, copied;
};

static int read_all(int fd, struct numbers *numbers) {
    struct notice notice;
    int ranges = 0;
    for (; read_notice(fd, &notice); ranges++) {
        expect(notice.first == numbers->next && (int)(notice.last - notice.first) >= 0, "numbers follow each other");
        /* On one host the kernel copies; a lane does not have to (lent.c). */
        expect(notice.code == SO_EE_CODE_ZEROCOPY_COPIED || (notice.code == 0 && getenv("SHUNPIKE_SOCKET")), "copied");
        numbers->next = notice.last + 1;
    }
    return ranges;
}

/* Waits until the notices of `count` calls are there and read; the only event waited for is the one that always comes. */
static void await_numbers(int fd, struct numbers *numbers, unsigned count) {
    while (numbers->next != count) {
        struct pollfd one = {fd, 0, 0};
        expect(poll(&one, 1, 10000) == 1 && one.revents & POLLERR, "an unread notice is POLLERR");
        read_all(fd, numbers);
    }
}

static void await_error(int fd) {
    struct pollfd one = {fd, 0, 0};
    expect(poll(&one, 1, 10000) == 1 && one.revents == POLLERR, "an unread notice is POLLERR, and nothing else");
}

static void none_left(int fd) {
    struct numbers none = {0, 0};
    expect(!read_all(fd, &none), "nothing is left");
    struct pollfd one = {fd, 0, 0};
    say("none left: %s, poll %d", outcome(recv(fd, data, 1, MSG_ERRQUEUE)), poll(&one, 1, 0));
}

/* -- the peer: reads everything, at once or when it is told to, and says how much -- */
static void drain(int fd) {
    uint64_t total = 0;
    for (ssize_t got; (got = recv(fd, data, 1 << 20, 0)) != 0; total += got)
        if (got < 0) die("recv");
    send_all(fd, &total, sizeof total);
    tell();
}

static void drain_when_told(int fd) {
    await();
    drain(fd);
}

static void all_arrived(int fd, uint64_t sent) {
    uint64_t total;
    shutdown(fd, SHUT_WR);
    recv_all(fd, &total, sizeof total);
    say("all arrived: %d", total == sent);
    await();
}

/* -- SO_ZEROCOPY and the flag without it -- */
static void option_client(int fd) {
    int values[] = {1, 2, -1, 0, 1 << 16};
    say("at first: %d", option(fd));
    for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
        say("set to %d: %s", values[i], outcome(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, values + i, sizeof(int))));
        say("now %d", option(fd));
    }
    say("too short: %s", outcome(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, values, 2)));
    say("nowhere: %s", outcome(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, (void *)8, sizeof(int))));
    say("off, send: %s", outcome(send(fd, data, 5000, ZC)));
    set_option(fd, 1);
    struct numbers numbers = {0, 0};
    say("on, send: %s", outcome(send(fd, data, 5000, ZC)));
    await_numbers(fd, &numbers, 1);
    set_option(fd, 0);
    say("off again, send: %s", outcome(send(fd, data, 5000, ZC)));
    set_option(fd, 1);
    say("on again, send: %s", outcome(send(fd, data, 5000, ZC)));
    await_numbers(fd, &numbers, 2);
    none_left(fd);
    all_arrived(fd, 20000);
}

/* -- which calls are counted -- */
static void counting_client(int fd) {
    struct numbers numbers = {0, 0};
    struct iovec parts[3] = {{data, 7}, {data, 0}, {data, 9000}};
    struct mmsghdr messages[3] = {{{.msg_iov = parts, .msg_iovlen = 1}, 0}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 0},
                                  {{.msg_iov = parts + 2, .msg_iovlen = 1}, 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    uint64_t sent = 0;
    set_option(fd, 1);
    for (int size = 1; size < 200000; size *= 7) sent += send(fd, data, size, ZC); /* 7 calls */
    sent += sendto(fd, data, 10000, ZC, NULL, 0);
    sent += sendmsg(fd, &message, ZC);
    say("sendmmsg: %s", outcome(sendmmsg(fd, messages, 3, ZC))); /* 2: one of them is empty */
    sent += 9007;
    sent += send(fd, data, 3000, ZC | MSG_MORE);
    await_numbers(fd, &numbers, 12);
    /* None of these is. */
    sent += write(fd, data, 100), sent += send(fd, data, 100, MSG_NOSIGNAL);
    say("empty: %s", outcome(send(fd, data, 0, ZC)));
    say("nowhere: %s", outcome(send(fd, (void *)8, 5000, ZC)));
    say("fast open: %s", outcome(send(fd, data, 5000, ZC | MSG_FASTOPEN)));
    message.msg_iovlen = 1;
    say("fast open, message: %s", outcome(sendmsg(fd, &message, ZC | MSG_FASTOPEN)));
    none_left(fd);
    sent += send(fd, data, 5000, ZC);
    await_numbers(fd, &numbers, 13);
    all_arrived(fd, sent);
    say("after shutdown: %s", outcome(send(fd, data, 5000, ZC)));
    say("no notice: %s", outcome(recv(fd, data, 1, MSG_ERRQUEUE)));
}

/* -- the message as such -- */
static void one_more(int fd) {
    if (send(fd, data, 5000, ZC) != 5000) die("send");
    await_error(fd);
}

static void reading_client(int fd) {
    union { unsigned char bytes[256]; struct cmsghdr align; } control;
    char payload[16] = "untouched", name[64];
    struct iovec room = {payload, sizeof payload};
    set_option(fd, 1);
    /* Of the family's own length (60 or 48 bytes), a byte less, and so on to none. */
    for (int size = 72; size >= 0; size -= size > 48 ? 1 : 4) {
        one_more(fd);
        memset(&control, 0xee, sizeof control);
        struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = size,
                                 .msg_name = name, .msg_namelen = sizeof name, .msg_flags = -1};
        say("room for %d: %s", size, outcome(recvmsg(fd, &message, MSG_ERRQUEUE)));
        say("flags %x, control %zu, name %u", message.msg_flags, message.msg_controllen, message.msg_namelen);
        for (int at = 0; at < 72; at += 8) printf(" %016lx", *(unsigned long *)(control.bytes + at));
        say(" %s", payload);
    }
    one_more(fd);
    struct msghdr without = {.msg_control = NULL, .msg_controllen = 100, .msg_flags = -1};
    say("no room: %s", outcome(recvmsg(fd, &without, MSG_ERRQUEUE | MSG_CMSG_CLOEXEC)));
    say("flags %x, control %zu", without.msg_flags, without.msg_controllen);
    one_more(fd);
    struct msghdr nowhere = {.msg_control = (void *)8, .msg_controllen = 100, .msg_flags = -1};
    say("nowhere: %s", outcome(recvmsg(fd, &nowhere, MSG_ERRQUEUE)));
    say("control %zu flags %x", nowhere.msg_controllen, nowhere.msg_flags);
    one_more(fd);
    say("recv: %s", outcome(recv(fd, payload, sizeof payload, MSG_ERRQUEUE)));
    one_more(fd);
    socklen_t size = sizeof name;
    say("recvfrom: %s", outcome(recvfrom(fd, payload, sizeof payload, MSG_ERRQUEUE, (void *)name, &size)));
    say("name %u, %s", size, payload);
    one_more(fd);
    struct mmsghdr two[2] = {{{.msg_control = &control, .msg_controllen = sizeof control}, 9},
                             {{.msg_control = &control, .msg_controllen = sizeof control}, 9}};
    say("recvmmsg: %s", outcome(recvmmsg(fd, two, 2, MSG_ERRQUEUE, NULL)));
    say("length %u flags %x control %zu", two[0].msg_len, two[0].msg_hdr.msg_flags, two[0].msg_hdr.msg_controllen);
    say("recvmmsg: %s", outcome(recvmmsg(fd, two, 2, MSG_ERRQUEUE, NULL)));
    int names[] = {SO_TIMESTAMP, SO_TIMESTAMPNS}, on = 1;
    for (int i = 0; i < 2; i++) {
        struct msghdr timed = {.msg_control = &control, .msg_controllen = sizeof control};
        setsockopt(fd, SOL_SOCKET, names[i], &on, sizeof on);
        one_more(fd);
        say("with the time: %s", outcome(recvmsg(fd, &timed, MSG_ERRQUEUE)));
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&timed);
        int64_t when[2];
        memcpy(when, CMSG_DATA(cmsg), sizeof when);
        say("type %d length %zu, now: %d", cmsg->cmsg_type, (size_t)cmsg->cmsg_len, llabs(when[0] - time(NULL)) < 10);
        say("a fraction: %d", when[1] >= 0 && when[1] < (i ? 1000000000 : 1000000));
        cmsg = CMSG_NXTHDR(&timed, cmsg);
        say("then type %d length %zu", cmsg->cmsg_type, (size_t)cmsg->cmsg_len);
    }
    on = 0;
    for (int i = 0; i < 2; i++) setsockopt(fd, SOL_SOCKET, names[i], &on, sizeof on);
    one_more(fd);
    struct msghdr bad = {.msg_iov = (void *)8, .msg_iovlen = 1};
    say("bad vector: %s", outcome(recvmsg(fd, &bad, MSG_ERRQUEUE)));
    struct notice notice;
    say("still there: %d", read_notice(fd, &notice));
    none_left(fd);
    shutdown(fd, SHUT_WR);
    await();
}

/* -- what tells of a notice -- */
static void waiting_client(int fd) {
    struct numbers numbers = {0, 0};
    int error = -1, set = epoll_create1(0);
    socklen_t size = sizeof error;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77}, got;
    struct timeval soon = {0, 0};
    fd_set in, out, urgent;
    set_option(fd, 1);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    say("epoll, nothing: %d", epoll_wait(set, &got, 1, 0));
    one_more(fd);
    for (int i = 0; i < 2; i++) {
        int n = epoll_wait(set, &got, 1, 10000);
        say("epoll: %d, %x, %lu", n, got.events, got.data.u64);
    }
    struct pollfd one = {fd, POLLIN | POLLPRI, 0};
    say("poll: %d", poll(&one, 1, 10000));
    say("events %x", one.revents);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    out = urgent = in;
    say("select: %d", select(fd + 1, &in, &out, &urgent, &soon));
    say("read %d write %d except %d", !!FD_ISSET(fd, &in), !!FD_ISSET(fd, &out), !!FD_ISSET(fd, &urgent));
    say("SO_ERROR: %s", outcome(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size)));
    say("error %d", error);
    say("read: %s", outcome(recv(fd, data, 1, MSG_DONTWAIT)));
    say("send: %s", outcome(send(fd, data, 1, MSG_DONTWAIT)));
    await_numbers(fd, &numbers, 1);
    say("epoll, all read: %d", epoll_wait(set, &got, 1, 0));
    /* A registration for nothing at all, one for once only, and one that is made when it is there already. */
    event.events = 0, epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
    one_more(fd);
    say("epoll for nothing: %d", epoll_wait(set, &got, 1, 10000));
    say("events %x", got.events);
    event.events = EPOLLIN | EPOLLONESHOT, epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
    say("once: %d", epoll_wait(set, &got, 1, 10000));
    say("events %x, then %d", got.events, epoll_wait(set, &got, 1, 0));
    epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
    event.events = EPOLLIN, epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    say("added to it: %d", epoll_wait(set, &got, 1, 10000));
    await_numbers(fd, &numbers, 2);
    say("all read: %d", epoll_wait(set, &got, 1, 0));
    none_left(fd);
    all_arrived(fd, 10001);
}

/* -- edges: one for each notice, read or not -- */
static void edges_client(int fd) {
    struct numbers numbers = {0, 0};
    struct epoll_event event = {.events = EPOLLET, .data.u64 = 5}, got;
    int set = epoll_create1(0);
    set_option(fd, 1);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    say("at first: %d", epoll_wait(set, &got, 1, 0));
    for (int i = 0; i < 3; i++) {
        if (send(fd, data, 5000, ZC) != 5000) die("send");
        say("sent: %d", epoll_wait(set, &got, 1, 10000));
        say("events %x, again %d", got.events, epoll_wait(set, &got, 1, 0));
        if (i == 1) await_numbers(fd, &numbers, 2);
    }
    event.events = EPOLLET | EPOLLIN, epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
    say("changed: %d", epoll_wait(set, &got, 1, 10000));
    say("events %x, again %d", got.events, epoll_wait(set, &got, 1, 0));
    await_numbers(fd, &numbers, 3);
    say("all read: %d", epoll_wait(set, &got, 1, 0));
    all_arrived(fd, 15000);
}

/* -- a thread that waits while another one sends -- */
static int shared_fd, ready[2];

static void *waiter(void *how) {
    struct pollfd one = {shared_fd, 0, 0};
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, got = {0};
    fd_set in;
    int set = epoll_create1(EPOLL_CLOEXEC), kind = *(char *)how, n = 0;
    if (kind == 'L') event.events = EPOLLIN;
    epoll_ctl(set, EPOLL_CTL_ADD, shared_fd, &event);
    FD_ZERO(&in);
    FD_SET(shared_fd, &in);
    if (write(ready[1], "!", 1) != 1) die("write");
    if (kind == 'p') n = poll(&one, 1, 10000), got.events = one.revents;
    else if (kind == 's') n = select(shared_fd + 1, &in, NULL, NULL, NULL), got.events = POLLERR;
    else n = epoll_wait(set, &got, 1, 10000);
    say("%c woken: %d, %x", kind, n, got.events);
    close(set);
    return NULL;
}

static void threads_client(int fd) {
    struct numbers numbers = {0, 0};
    set_option(shared_fd = fd, 1);
    if (pipe(ready)) die("pipe");
    for (const char *kind = "psLE"; *kind; kind++) {
        for (int round = 0; round < 3; round++) {
            pthread_t thread;
            char byte;
            if (pthread_create(&thread, NULL, waiter, (void *)kind) || read(ready[0], &byte, 1) != 1) die("thread");
            usleep(round * 20000); /* asleep or not yet: the outcome is the same */
            if (send(fd, data, 5000, ZC) != 5000) die("send");
            pthread_join(thread, NULL);
            await_numbers(fd, &numbers, numbers.next + 1);
        }
    }
    none_left(fd);
    all_arrived(fd, 12 * 5000);
}

/* -- a peer that does not read: what was taken counts, once, what was not does not -- */
static void partial_client(int fd) {
    struct numbers numbers = {0, 0};
    unsigned calls = 0, refused = 0;
    uint64_t sent = 0;
    set_option(fd, 1);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    ssize_t first = send(fd, data, LARGE, ZC);
    say("a part: %d", first > 0 && first < LARGE);
    sent += first, calls++;
    while (refused < 5) {
        ssize_t more = send(fd, data, 3 << 20, ZC);
        if (more > 0) sent += more, calls++;
        else {
            expect(more < 0 && errno == EAGAIN, "a full connection says EAGAIN");
            refused++;
            usleep(30000); /* on a lane the grace passes meanwhile, and TCP takes more */
        }
    }
    tell();
    fcntl(fd, F_SETFL, 0);
    await_numbers(fd, &numbers, calls);
    none_left(fd);
    ssize_t whole = send(fd, data, LARGE, ZC);
    say("all of it: %d", whole == LARGE);
    await_numbers(fd, &numbers, calls + 1);
    all_arrived(fd, sent + LARGE);
}

/* -- accepted with the option, counted from 0 -- */
static void inherited_server(int fd) {
    struct numbers numbers = {0, 0};
    say("accepted with %d", option(fd));
    for (int i = 0; i < 3; i++)
        if (send(fd, data, 5000, ZC) != 5000) die("send");
    await_numbers(fd, &numbers, 3);
    none_left(fd);
    tell();
}

static void inherited_client(int fd) {
    recv_all(fd, data, 15000);
    say("mine: %d", option(fd));
    await();
}

/* -- one sequence for a parent and its child -- */
static void in_child(void (*act)(int, struct numbers *), int fd, struct numbers *numbers) {
    fflush(stdout);
    pid_t child = fork();
    int status;
    if (child < 0) die("fork");
    if (!child) act(fd, numbers), exit(0);
    expect(waitpid(child, &status, 0) == child && status == 0, "the child succeeds");
}

static void child_sends(int fd, UNUSED struct numbers *numbers) {
    for (int i = 0; i < 3; i++)
        if (send(fd, data, 5000, ZC) != 5000) die("send");
}

static void child_reads(int fd, struct numbers *numbers) {
    await_numbers(fd, numbers, 6);
    say("the child has read up to %u", numbers->next);
}

static void forked_client(int fd) {
    struct numbers numbers = {0, 0};
    set_option(fd, 1);
    if (send(fd, data, 5000, ZC) != 5000) die("send");
    in_child(child_sends, fd, &numbers);
    await_numbers(fd, &numbers, 4);
    for (int i = 0; i < 2; i++)
        if (send(fd, data, 5000, ZC) != 5000) die("send");
    await_error(fd);
    in_child(child_reads, fd, &numbers);
    none_left(fd);
    all_arrived(fd, 30000);
}

/* -- RLIMIT_MEMLOCK bounds a call's pages, for who has not CAP_IPC_LOCK -- */
static void limit_client(int fd) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    struct rlimit limit = {64 << 12, 64 << 12};
    struct numbers numbers = {0, 0};
    set_option(fd, 1);
    if (syscall(SYS_capget, &header, sets)) die("capget");
    sets[0].effective &= ~(1 << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, sets) || setrlimit(RLIMIT_MEMLOCK, &limit)) die("limits");
    say("63 pages and 2: %s", outcome(send(fd, data, 63 << 12, ZC)));
    say("100 pages: %s", outcome(send(fd, data, 100 << 12, ZC)));
    say("100 pages, copied: %s", outcome(send(fd, data, 100 << 12, MSG_NOSIGNAL)));
    say("62 pages and 2: %s", outcome(send(fd, data, 62 << 12, ZC)));
    await_numbers(fd, &numbers, 1);
    none_left(fd);
    all_arrived(fd, 162 << 12);
}

/* -- one sequence over everything that a connection goes through; until BED_WARM_UNTIL is there -- */
static void turns_server(int fd) {
    static char message[300000];
    uint32_t size;
    while (recv_upto(fd, &size, sizeof size) == sizeof size) {
        recv_all(fd, message, size);
        for (uint32_t i = 0; i < size; i++) expect(message[i] == (char)(size + i / 512), "bytes are as they were sent");
        send_all(fd, &size, sizeof size);
    }
    tell();
}

static void turns_client(int fd) {
    struct numbers numbers = {0, 0};
    unsigned calls = 0, ranges = 0;
    uint64_t seed = 11;
    int64_t began = now_ms();
    set_option(fd, 1);
    for (int round = 0, more = 300; more; round++, more -= is_warm(round, began)) {
        uint64_t dice = rng_next(&seed);
        uint32_t size = 1 + dice % (round % 8 ? 20000 : 250000), answer;
        for (uint32_t i = 0; i < size; i++) data[i] = (char)(size + i / 512);
        if (send(fd, &size, sizeof size, dice >> 32 & 1 ? ZC : 0) != sizeof size) die("send");
        calls += dice >> 32 & 1;
        if (send(fd, data, size, ZC) != (ssize_t)size) die("send");
        calls++;
        if (dice >> 33 & 1) ranges += read_all(fd, &numbers);
        recv_all(fd, &answer, sizeof answer);
        expect(answer == size, "the answer is to this message");
        if (!(dice >> 34 & 15)) await_numbers(fd, &numbers, calls);
    }
    await_numbers(fd, &numbers, calls);
    none_left(fd);
    shutdown(fd, SHUT_WR);
    await();
    fprintf(stderr, "%u calls\n", calls);
}

/* -- several threads that send, one that reads notices; until BED_WARM_UNTIL is there -- */
static int64_t crowd_began;
static uint64_t crowd_sent;

static void *crowd_sender(void *number) {
    uint64_t seed = 100 + (long)number, sent = 0;
    long calls = 0;
    for (int more = 500; more; calls++, more -= is_warm(calls, crowd_began)) {
        uint64_t dice = rng_next(&seed);
        size_t size = 1 + dice % (calls % 50 ? 3000 : 400000);
        /* On TCP, notices that are still to come may use up what net.core.optmem_max allows: not counted, nothing sent. */
        ssize_t n;
        while ((n = send(shared_fd, data, size, ZC)) < 0 && errno == ENOBUFS) sched_yield();
        if (n != (ssize_t)size) die("send");
        sent += size;
        if (calls % 16 == 0) usleep(1000); /* a lane begins only when nobody is inside the kernel: no result depends on it */
    }
    __atomic_add_fetch(&crowd_sent, sent, __ATOMIC_RELAXED);
    return (void *)calls;
}

/* The kernel gives a number when a call begins, so those of several threads come in any order: each once. */
static void *crowd_reader(void *all) {
    static char seen[10000000];
    unsigned count = 0, last = 0;
    int over = 0;
    while (!over || count < *(unsigned *)all) {
        struct pollfd both[2] = {{shared_fd, 0, 0}, {over ? -1 : ready[0], POLLIN, 0}};
        struct notice notice;
        if (poll(both, 2, 10000) < 1) die("poll");
        over |= both[1].revents;
        while (both[0].revents && read_notice(shared_fd, &notice)) {
            for (unsigned n = notice.first; n != notice.last + 1; n++, count++)
                expect(n < sizeof seen && !seen[n]++, "each number comes once");
            if (notice.last > last) last = notice.last;
        }
    }
    expect(last + 1 == count, "no number is left out");
    return NULL;
}

static void crowd_client(int fd) {
    pthread_t senders[3], reader;
    unsigned all = 0;
    set_option(shared_fd = fd, 1);
    crowd_began = now_ms();
    if (pipe(ready) || pthread_create(&reader, NULL, crowd_reader, &all)) die("thread");
    for (long i = 0; i < 3; i++)
        if (pthread_create(senders + i, NULL, crowd_sender, (void *)i)) die("thread");
    for (int i = 0; i < 3; i++) {
        void *calls;
        pthread_join(senders[i], &calls);
        all += (unsigned)(long)calls;
    }
    if (write(ready[1], "!", 1) != 1) die("write");
    pthread_join(reader, NULL);
    none_left(fd);
    all_arrived(fd, crowd_sent);
}

/* -- notices of TCP that nobody reads are not the end of a lane, nor do they keep a thread awake -- */
static void unread_server(int fd) {
    char word[8];
    recv_all(fd, word, 5);
    warm_up_server(fd);
    await();
    usleep(300000); /* for so long the client has nothing to do */
    send_all(fd, "answer", 6);
    await();
}

static void unread_client(int fd) {
    struct numbers numbers = {0, 0};
    struct rusage usage[2];
    set_option(fd, 1);
    if (send(fd, "first", 5, ZC) != 5) die("send");
    await_error(fd);
    warm_up_client(fd);
    tell();
    getrusage(RUSAGE_SELF, usage);
    recv_all(fd, data, 6);
    getrusage(RUSAGE_SELF, usage + 1);
    long spent = 0;
    for (int i = 0, sign = -1; i < 2; i++, sign = 1)
        spent += sign * (usage[i].ru_utime.tv_sec * 1000000 + usage[i].ru_utime.tv_usec + usage[i].ru_stime.tv_sec * 1000000 + usage[i].ru_stime.tv_usec);
    expect(spent < 100000, "a thread that waits sleeps");
    if (send(fd, data, 5000, ZC) != 5000) die("send");
    await_numbers(fd, &numbers, 2);
    none_left(fd);
    tell();
}

/* -- two families, one mapped into the other -- */
static struct sockaddr_in6 address_of(int port, socklen_t *size) {
    const char *family = getenv("BED_FAMILY");
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    *size = sizeof address;
    if (family && !strcmp(family, "6")) address.sin6_addr = in6addr_loopback;
    else if (family && !strcmp(family, "mapped")) inet_pton(AF_INET6, "::ffff:127.0.0.1", &address.sin6_addr);
    else {
        struct sockaddr_in v4 = bed_address(port);
        memcpy(&address, &v4, *size = sizeof v4);
    }
    return address;
}

static int connection(int is_server, int port, int with_option) {
    socklen_t size;
    struct sockaddr_in6 address = address_of(port, &size);
    int fd = socket(address.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0) die("socket");
    if (!is_server) {
        if (connect(fd, (struct sockaddr *)&address, size)) die("connect");
        return fd;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (with_option) set_option(fd, 1);
    if (bind(fd, (struct sockaddr *)&address, size) || listen(fd, 8)) die("listen");
    int accepted = accept(fd, NULL, NULL);
    if (accepted < 0) die("accept");
    close(fd);
    return accepted;
}

static const struct bed_case cases[] = {
    {"option", drain, option_client},       {"counting", drain, counting_client},
    {"reading", drain, reading_client},     {"waiting", drain, waiting_client},
    {"edges", drain, edges_client},         {"threads", drain, threads_client},
    {"partial", drain_when_told, partial_client}, {"inherited", inherited_server, inherited_client},
    {"forked", drain, forked_client},       {"limit", drain, limit_client},
    {"unread", unread_server, unread_client}, {"turns", turns_server, turns_client},
    {"crowd", drain, crowd_client},         {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server");
    /* These begin with the first byte, whatever carries it. */
    int is_cold = !strcmp(argv[2], "turns") || !strcmp(argv[2], "crowd") || !strcmp(argv[2], "unread");
    const struct bed_case *one = cases;
    while (one->name && strcmp(one->name, argv[2])) one++;
    expect(one->name != NULL, "the case is known");
    data = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) die("mmap");
    sync_open(is_server);
    int fd = connection(is_server, atoi(argv[3]), !strcmp(argv[2], "inherited")), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!is_cold) (is_server ? warm_up_server : warm_up_client)(fd);
    (is_server ? one->server : one->client)(fd);
    say("done");
    return 0;
}
