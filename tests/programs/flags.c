/* Reading and writing: flags, sizes, and the calls that a program may choose from.
 *   flags server|client CASE PORT */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <linux/sockios.h>

static unsigned char data[1 << 20];

static const unsigned char *seeded(uint64_t seed, size_t count) {
    rng_fill(&seed, data, count);
    return data;
}

static void say_hash(const char *what, const void *from, long count) {
    say("%s: %s %016lx", what, outcome(count), count > 0 ? hash_more(HASH_START, from, count) : 0);
}

/* -- MSG_PEEK: shows what the next read will give, and takes nothing -- */
static void peek_server(int fd) {
    send_all(fd, seeded(1, 1000), 1000);
    tell();
    await();
}

static void peek_client(int fd) {
    static unsigned char got[2000];
    await();
    say_hash("peek 10", got, recv(fd, got, 10, MSG_PEEK));
    say_hash("peek all", got, recv(fd, got, sizeof got, MSG_PEEK));
    say_hash("peek waitall", got, recv(fd, got, 1000, MSG_PEEK | MSG_WAITALL));
    say_hash("read 400", got, recv(fd, got, 400, 0));
    say_hash("peek rest", got, recv(fd, got, sizeof got, MSG_PEEK | MSG_DONTWAIT));
    say_hash("read rest", got, read(fd, got, sizeof got));
    say("peek none: %s", outcome(recv(fd, got, sizeof got, MSG_PEEK | MSG_DONTWAIT)));
    tell();
}

/* -- MSG_WAITALL: over several sends, cut short by the end of the stream -- */
static void waitall_server(int fd) {
    for (int part = 0; part < 2; part++) {
        await();
        send_all(fd, seeded(40 + part, 500), 500);
        usleep(50000); /* long enough for a look that does not wait to end */
        if (part == 0) tell();
    }
    await();
    for (int part = 0; part < 3; part++) {
        send_all(fd, seeded(2 + part, 1000), 1000);
        usleep(20000); /* only spreads the parts: no result depends on it */
    }
    await();
    send_all(fd, seeded(9, 1500), 1500);
    tell();
    await();
    shutdown(fd, SHUT_WR);
    await();
}

static void waitall_client(int fd) {
    static unsigned char got[4000];
    tell();
    say_hash("look at a part", got, recv(fd, got, 500, MSG_PEEK | MSG_WAITALL));
    await();
    tell();
    say_hash("look at all of two", got, recv(fd, got, 1000, MSG_PEEK | MSG_WAITALL));
    say_hash("and read it", got, recv(fd, got, 1000, MSG_WAITALL));
    tell();
    say_hash("all of three sends", got, recv(fd, got, 3000, MSG_WAITALL));
    say("nothing there: %s", outcome(recv(fd, got, 100, MSG_WAITALL | MSG_DONTWAIT)));
    tell();
    await();
    say_hash("dontwait overrides", got, recv(fd, got, 4000, MSG_WAITALL | MSG_DONTWAIT | MSG_PEEK));
    tell();
    say_hash("look cut by the end", got, recv(fd, got, 4000, MSG_WAITALL | MSG_PEEK));
    say_hash("cut by the end", got, recv(fd, got, 4000, MSG_WAITALL));
    say("at the end: %s", outcome(recv(fd, got, 4000, MSG_WAITALL)));
    tell();
}

/* -- MSG_DONTWAIT and O_NONBLOCK: EAGAIN on empty and on full, and nothing lost round a full buffer -- */
static void dontwait_server(int fd) {
    await();
    uint64_t hash = HASH_START, total = 0;
    for (;;) {
        ssize_t got = recv(fd, data, sizeof data, 0);
        if (got < 0) die("recv");
        if (got == 0) break;
        hash = hash_more(hash, data, got), total += got;
    }
    send_all(fd, &hash, sizeof hash);
    send_all(fd, &total, sizeof total);
}

static void dontwait_client(int fd) {
    uint64_t hash = HASH_START, total = 0, theirs[2], seed = 4;
    say("empty: %s", outcome(recv(fd, data, 10, MSG_DONTWAIT)));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    say("empty, O_NONBLOCK: %s", outcome(read(fd, data, 10)));
    fcntl(fd, F_SETFL, 0);
    for (int full = 0; full < 2;) {
        rng_fill(&seed, data, 50000);
        ssize_t sent = send(fd, data, 50000, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (!full++) say("full: %s", outcome(sent));
            if (full == 1) tell();
            struct pollfd writable = {fd, POLLOUT, 0};
            expect(poll(&writable, 1, 10000) == 1, "a drained connection is writable again");
            continue;
        }
        hash = hash_more(hash, data, sent), total += sent;
        expect(total < 1u << 30, "a connection nobody reads gets full");
        if (full && total > 3u << 20) break;
    }
    shutdown(fd, SHUT_WR);
    recv_all(fd, theirs, sizeof theirs);
    say("same: %d %d", theirs[0] == hash, theirs[1] == total);
}

/* -- zero lengths, MSG_TRUNC, FIONREAD, SIOCOUTQ -- */
static void lengths_server(int fd) {
    send_all(fd, seeded(5, 1000), 1000);
    tell();
    await();
    send_all(fd, data, 10);
    await();
}

static void lengths_client(int fd) {
    static unsigned char got[2000];
    int count = -1;
    say("read 0 of nothing: %s", outcome(read(fd, got, 0)));
    await();
    say("FIONREAD: %s", outcome(ioctl(fd, FIONREAD, &count)));
    say("bytes: %d", count);
    say("read 0: %s", outcome(read(fd, got, 0)));
    say("recv 0: %s", outcome(recv(fd, got, 0, 0)));
    say("trunc: %s", outcome(recv(fd, got, 100, MSG_TRUNC)));
    say_hash("after trunc", got, recv(fd, got, 900, MSG_WAITALL));
    ioctl(fd, FIONREAD, &count);
    say("bytes: %d", count);
    say("send 0: %s", outcome(send(fd, got, 0, MSG_NOSIGNAL)));
    say("write 0: %s", outcome(write(fd, got, 0)));
    tell();
    say("after empty sends: %s", outcome(recv(fd, got, 10, MSG_WAITALL)));
    ioctl(fd, SIOCOUTQ, &count);
    say("unsent: %d", count);
    tell();
}

/* -- sendfile, splice in and out -- */
#define FILE_BYTES 900001
#define DIRECT_BYTES 65536

/* A file that is read into memory at multiples of a block's size only. */
static void direct(int fd) {
    char path[] = "/tmp/bed-direct-XXXXXX";
    int file = mkstemp(path), read_past = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (file < 0 || write(file, data, DIRECT_BYTES) != DIRECT_BYTES || fsync(file)) die("a file");
    /* Where the file system has none of that, a plain one. */
    if (read_past < 0) read_past = dup(file);
    off_t at = 0;
    say("a byte: %s", outcome(send(fd, "!", 1, MSG_NOSIGNAL)));
    say("sendfile: %s", outcome(sendfile(fd, read_past, &at, DIRECT_BYTES)));
    say("up to %ld", (long)at);
    close(read_past), close(file), unlink(path);
}

static void files_server(int fd) {
    int file = memfd_create("bed", MFD_CLOEXEC), pipes[2];
    if (pipe(pipes) || write(file, seeded(6, FILE_BYTES), FILE_BYTES) != FILE_BYTES) die("preparation");
    off_t at = 1;
    while (at < FILE_BYTES)
        if (sendfile(fd, file, &at, FILE_BYTES - at) <= 0) die("sendfile");
    direct(fd);
    lseek(file, 0, SEEK_SET);
    for (ssize_t left = FILE_BYTES; left > 0;) {
        ssize_t moved = splice(file, NULL, pipes[1], NULL, 50000 < left ? 50000 : left, 0);
        if (moved <= 0) die("splice from a file");
        left -= moved;
        while (moved > 0) {
            ssize_t out = splice(pipes[0], NULL, fd, NULL, moved, 0);
            if (out <= 0) die("splice to a socket");
            moved -= out;
        }
    }
    shutdown(fd, SHUT_WR);
    await();
}

static void files_client(int fd) {
    recv_all(fd, data, FILE_BYTES - 1);
    say_hash("sendfile", data, FILE_BYTES - 1);
    recv_all(fd, data, 1 + DIRECT_BYTES);
    say_hash("direct", data, 1 + DIRECT_BYTES);
    int pipes[2];
    if (pipe(pipes)) die("pipe");
    size_t have = 0;
    for (ssize_t moved; (moved = splice(fd, NULL, pipes[1], NULL, 30000, 0)) != 0;) {
        if (moved < 0) die("splice from a socket");
        for (ssize_t got; moved > 0; moved -= got, have += got)
            if ((got = read(pipes[0], data + have, moved)) <= 0) die("read of the pipe");
    }
    say_hash("splice", data, have);
    tell();
}

/* -- the vector and message calls -- */
static void vectors_server(int fd) {
    seeded(7, 60000);
    struct iovec parts[4] = {{data, 1}, {data + 1, 0}, {data + 1, 20000}, {data + 20001, 3}};
    struct mmsghdr messages[2] = {{{.msg_iov = parts, .msg_iovlen = 2}, 0}, {{.msg_iov = parts + 2, .msg_iovlen = 2}, 0}};
    int sent = sendmmsg(fd, messages, 2, MSG_NOSIGNAL);
    say("sendmmsg: %s %u %u", outcome(sent), messages[0].msg_len, messages[1].msg_len);
    struct iovec rest[2] = {{data + 20004, 9996}, {data + 30000, 30000}};
    say("pwritev2: %s", outcome(pwritev2(fd, rest, 1, -1, 0)));
    say("pwritev: %s", outcome(pwritev(fd, rest, 1, -1)));
    say("writev: %s", outcome(writev(fd, rest + 1, 1)));
    say("writev of none: %s", outcome(writev(fd, rest, 0)));
    tell();
    await();
}

static void vectors_client(int fd) {
    static unsigned char got[60000];
    await(); /* all of it is there: counts below depend only on the sizes asked for */
    struct iovec parts[3] = {{got, 7}, {got + 7, 0}, {got + 7, 93}};
    char control[64];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_control = control, .msg_controllen = 64, .msg_flags = -1};
    say("recvmsg: %s", outcome(recvmsg(fd, &message, 0)));
    say("controllen %zu flags %x namelen %u", message.msg_controllen, message.msg_flags, message.msg_namelen);
    struct iovec one = {got + 100, 900}, two = {got + 1000, 1000};
    struct mmsghdr messages[2] = {{{.msg_iov = &one, .msg_iovlen = 1}, 0}, {{.msg_iov = &two, .msg_iovlen = 1}, 0}};
    int count = recvmmsg(fd, messages, 2, 0, NULL);
    say("recvmmsg: %s %u %u", outcome(count), messages[0].msg_len, messages[1].msg_len);
    struct iovec more = {got + 2000, 3000};
    say("preadv2: %s", outcome(preadv2(fd, &more, 1, -1, 0)));
    say("preadv: %s", outcome(preadv(fd, &more, 1, -1)));
    recv_all(fd, got + 5000, 55000);
    say_hash("all", got, 60000);
    tell();
}

/* -- duplicates: one stream, one O_NONBLOCK, alive until the last is closed -- */
static void dups_server(int fd) {
    char byte;
    for (int i = 0; i < 4; i++) {
        send_all(fd, seeded(30 + i, 3000), 3000);
        recv_all(fd, &byte, 1);
    }
    say("end: %s", outcome(recv(fd, &byte, 1, 0)));
    tell();
}

static void dups_client(int fd) {
    static unsigned char got[3000];
    int second = dup(fd), third = fcntl(fd, F_DUPFD_CLOEXEC, 700), fourth = dup2(fd, 800);
    expect(third == 700 && fourth == 800, "duplicates get their numbers");
    fcntl(second, F_SETFL, O_NONBLOCK);
    say("O_NONBLOCK is shared: %d", !!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    fcntl(fourth, F_SETFL, 0);
    int each[4] = {fd, second, third, fourth};
    for (int i = 0; i < 4; i++) {
        recv_all(each[i], got, 3000);
        say_hash("over a duplicate", got, 3000);
        send_all(each[i], "!", 1);
        close(each[i]);
        say("closed: %s", outcome(recv(each[i], got, 1, MSG_DONTWAIT)));
    }
    await();
}

/* -- calls that the kernel refuses end nothing, and what is dissolved keeps its options -- */
static void refused_server(int fd) {
    char byte;
    send_all(fd, seeded(8, 1000), 1000);
    tell();
    await();
    send_all(fd, data, 10);
    tell();
    say("end: %s", outcome(recv(fd, &byte, 1, 0)));
}

static void refused_client(int fd) {
    static unsigned char got[1000];
    struct linger linger = {-1, -1};
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    await();
    say("dup3: %s", outcome(dup3(tell_fd, fd, 0x12345)));
    recv_all(fd, got, sizeof got);
    say_hash("all the same", got, sizeof got);
    tell();
    await();
    say("dissolved: %s", outcome(connect(fd, &nowhere, sizeof nowhere)));
    say("linger: %s", outcome(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &(socklen_t){sizeof linger})));
    say("%d %d", linger.l_onoff, linger.l_linger);
}

/* -- a connection with two names that one of them dissolves: both are a socket that is not connected, and may be connected elsewhere -- */
enum { ANEW = 5, EXCHANGES = 400 };

/* What a name of a socket that is not connected says. */
static void say_alone(const char *name, int fd, int set) {
    struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    struct sockaddr_in peer;
    struct epoll_event event;
    char byte;
    int there = poll(&one, 1, 0), told = set < 0 ? 0 : epoll_wait(set, &event, 1, 0);
    say("%s: poll %d %x, epoll %d %x", name, there, one.revents, told, told == 1 ? event.events : 0);
    say("peer: %s", outcome(getpeername(fd, (struct sockaddr *)&peer, &(socklen_t){sizeof peer})));
    say("recv: %s", outcome(recv(fd, &byte, 1, MSG_DONTWAIT)));
    say("read: %s", outcome(read(fd, &byte, 1)));
    say("send: %s", outcome(send(fd, "!", 1, MSG_NOSIGNAL)));
}

/* Which name dissolves, and which one connects, by turns, with something unread now and then; in the end there is one.
 * `undone`: each is in a set, too. */
static void dissolves(int fd, int is_in_sets) {
    static unsigned char got[1000];
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    struct sockaddr_in to;
    int names[2] = {fd, dup(fd)}, sets[2] = {-1, -1};
    recv_all(fd, &to, sizeof to);
    for (int i = 0; is_in_sets && i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
        if ((sets[i] = epoll_create1(EPOLL_CLOEXEC)) < 0 || epoll_ctl(sets[i], EPOLL_CTL_ADD, names[i], &event)) die("a set");
    }
    for (int turn = 0; turn < ANEW; turn++) {
        if (turn == ANEW - 1) {
            if (is_in_sets && epoll_ctl(sets[1], EPOLL_CTL_DEL, names[1], NULL)) die("EPOLL_CTL_DEL");
            close(names[1]);
            names[1] = fd, sets[1] = sets[0];
        }
        int by = names[turn % 2], other = names[1 - turn % 2], next = names[turn / 2 % 2];
        struct epoll_event event;
        if (turn % 2) await();
        say("dissolved: %s", outcome(connect(by, &nowhere, sizeof nowhere)));
        say_alone("by it", by, sets[turn % 2]);
        say_alone("the other", other, sets[1 - turn % 2]);
        say("anew: %s", outcome(connect(next, (struct sockaddr *)&to, sizeof to)));
        /* By the name that connected alone, so often that a lane would open; then what comes is there for both. */
        for (int i = 0; i < EXCHANGES; i++) {
            int is_both = i >= EXCHANGES / 2, to = (turn / 2 + i * is_both) % 2, from = is_both ? 1 - to : to;
            struct pollfd one = {names[to], POLLIN, 0};
            send_all(names[to], seeded(i, 1000), 1000);
            expect((is_in_sets ? epoll_wait(sets[to], &event, 1, 5000) : poll(&one, 1, 5000)) == 1, "told of it");
            expect(recv(names[from], got, sizeof got, MSG_PEEK | MSG_DONTWAIT) > 0, "it is there by the other name");
            recv_all(names[from], got, sizeof got);
            expect(!memcmp(got, data, sizeof got), "it is what was sent");
        }
        say("no more: %s", outcome(recv(fd, got, 1, MSG_DONTWAIT)));
        tell();
    }
    send_all(fd, "last", 4);
    say("the one that is left: %s", outcome(recv(fd, got, 4, MSG_WAITALL)));
    await();
    say("its end: %s", outcome(recv(fd, got, 1, 0)));
    tell();
}

static void dissolved_client(int fd) { dissolves(fd, 0); }
static void undone_client(int fd) { dissolves(fd, 1); }

static void dissolved_server(int fd) {
    static unsigned char got[1000];
    int listener = listen_on(0);
    struct sockaddr_in address;
    if (getsockname(listener, (struct sockaddr *)&address, &(socklen_t){sizeof address})) die("getsockname");
    send_all(fd, &address, sizeof address);
    for (int turn = 0; turn < ANEW; turn++) {
        if (turn % 2) send_all(fd, "unread", 6), tell();
        int next = accept_one(listener);
        say("end: %s", outcome(recv(fd, got, 1, 0)));
        close(fd);
        fd = next;
        for (int i = 0; i < EXCHANGES; i++) {
            recv_all(fd, got, sizeof got);
            send_all(fd, got, sizeof got);
        }
        await();
    }
    recv_all(fd, got, 4);
    send_all(fd, got, 4);
    shutdown(fd, SHUT_WR);
    tell();
    await();
}

/* -- O_NONBLOCK, cleared past fcntl() and ioctl(): the call blocks again, after a moment -- */
static void blocks_client(int fd) {
    char byte;
    for (int way = 0; way < 3; way++) {
        int off = 0;
        fcntl(fd, F_SETFL, O_NONBLOCK);
        say("nothing: %s", outcome(recv(fd, &byte, 1, 0)));
        if (way == 0) syscall(SYS_fcntl, fd, F_SETFL, 0);
        else if (way == 1) unseen_call(SYS_fcntl, fd, F_SETFL, 0, 0);
        else unseen_call(SYS_ioctl, fd, FIONBIO, (long)&off, 0);
        if (way > 0) usleep(2000); /* nobody has seen that: it is found when TCP is looked at again */
        tell();
        say("a byte: %s", outcome(recv(fd, &byte, 1, 0)));
    }
    tell();
}

static void blocks_server(int fd) {
    for (int way = 0; way < 3; way++) {
        await();
        usleep(100000);
        send_all(fd, "!", 1);
    }
    await();
}

static const struct bed_case cases[] = {
    {"peek", peek_server, peek_client},       {"waitall", waitall_server, waitall_client},
    {"dontwait", dontwait_server, dontwait_client}, {"lengths", lengths_server, lengths_client},
    {"files", files_server, files_client},    {"vectors", vectors_server, vectors_client},
    {"dups", dups_server, dups_client},       {"refused", refused_server, refused_client},
    {"blocks", blocks_server, blocks_client}, {"dissolved", dissolved_server, dissolved_client},
    {"undone", dissolved_server, undone_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
