/* What TCP_CORK and MSG_MORE hold back, what lets it go, and that nothing stays held.
 *   corks server|client CASE PORT
 *
 * A look at what is held must come within TCP's 200 ms: of some rounds, one does on any machine. */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define ROUNDS 5
#define PART 1000
#define SIOCOUTQNSD 0x894B
#define SEGMENTS 4

static unsigned char data[1 << 20];

static void cork(int fd, int on) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on)) die("TCP_CORK");
}

static void nodelay(int fd, int on) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) die("TCP_NODELAY");
}

static int queued(int fd, unsigned long request) {
    int bytes = -1;
    if (ioctl(fd, request, &bytes)) die("ioctl");
    return bytes;
}

static void send_part(int fd, int flags) {
    expect(send(fd, data, PART, MSG_NOSIGNAL | flags) == PART, "a part is taken");
}

/* Whether each way to look finds nothing. */
static int sees_nothing(int fd) {
    static int set = -1;
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd look = {fd, POLLIN, 0};
    char byte;
    if (set < 0) {
        set = epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    }
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN && queued(fd, FIONREAD) == 0 &&
           poll(&look, 1, 0) == 0 && epoll_wait(set, &event, 1, 0) == 0;
}

/* -- each of the ways in which what is held goes out: the client holds two parts, and lets go -- */
static void rounds_server(int fd, size_t sent) {
    int held = 0, shown = 0;
    for (int round = 0; round < ROUNDS; round++) {
        await();
        held |= sees_nothing(fd);
        tell();
        await();
        int64_t before = now_ms();
        recv_all(fd, data, sent);
        shown |= now_ms() - before < 40;
        tell();
    }
    say("held: %d, and then at once: %d", held, shown);
}

static void rounds_client(int fd, int is_corked, void (*release)(int fd)) {
    int queues = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (is_corked) cork(fd, 1);
        send_part(fd, is_corked ? 0 : MSG_MORE);
        send_part(fd, is_corked ? 0 : MSG_MORE);
        queues |= queued(fd, TIOCOUTQ) == 2 * PART && queued(fd, SIOCOUTQNSD) == 2 * PART;
        tell();
        await();
        release(fd);
        tell();
        await();
    }
    say("unsent meanwhile: %d, afterwards %d", queues, queued(fd, SIOCOUTQNSD));
    await();
}

static void send_more(int fd) { send_part(fd, 0); }
static void uncork(int fd) { cork(fd, 0); }
static void push(int fd) {
    nodelay(fd, 0);
    nodelay(fd, 1);
    int on = -1;
    socklen_t size = sizeof on;
    expect(!getsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, &size) && on == 1, "the cork stays");
}

static void more_server(int fd) { rounds_server(fd, 3 * PART), tell(); }
static void more_client(int fd) { rounds_client(fd, 0, send_more); }
static void cork_server(int fd) { rounds_server(fd, 2 * PART), tell(); }
static void cork_client(int fd) { rounds_client(fd, 1, uncork); }
static void push_server(int fd) { rounds_server(fd, 2 * PART), tell(); }
static void push_client(int fd) { rounds_client(fd, 1, push); }

/* -- nobody lets go: TCP does after 200 ms, whoever waits, and however -- */
static void wait_for_it(int fd, int how) {
    struct pollfd look = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN | (how == 3 ? (unsigned)EPOLLET : 0)};
    char byte;
    if (how == 0) {
        expect(recv(fd, &byte, 1, MSG_PEEK) == 1, "a byte");
    } else if (how == 1) {
        expect(poll(&look, 1, 10000) == 1, "poll tells");
    } else {
        int set = epoll_create1(EPOLL_CLOEXEC);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
        expect(epoll_wait(set, &event, 1, 10000) == 1 && event.events & EPOLLIN, "epoll tells");
        close(set);
    }
}

static void timer_server(int fd) {
    for (int how = 0; how < 4; how++) {
        int in_time = 0;
        for (int round = 0; round < ROUNDS; round++) {
            tell();
            int64_t before = now_ms();
            wait_for_it(fd, how);
            int64_t waited = now_ms() - before;
            in_time |= waited >= 150 && waited < 400;
            recv_all(fd, data, PART);
        }
        say("after 200 ms: %d", in_time);
    }
    /* Who looks late finds it at once. */
    tell();
    await();
    struct timespec late = {0, 400000000};
    nanosleep(&late, NULL);
    say("late: %s", outcome(recv(fd, data, PART, MSG_DONTWAIT)));
    tell();
}

static void timer_client(int fd) {
    /* Not MSG_MORE: what that holds, any acknowledgement lets go. */
    cork(fd, 1);
    for (int round = 0; round < 4 * ROUNDS + 1; round++) {
        await();
        send_part(fd, 0);
    }
    tell();
    await();
}

/* -- what fills a segment of a small window goes out; what is added to it then is held, and goes out after 200 ms, too -- */
static const size_t segments[] = {8192, 8192, 16384, 32768, 40000, 65536};

static void added_server(int fd) {
    int in_time = 1;
    for (size_t at = 0; at < sizeof segments / sizeof *segments; at++) {
        tell();
        int64_t before = now_ms();
        recv_all(fd, data, segments[at] + 10);
        in_time &= now_ms() - before < 1000;
    }
    say("in time: %d", in_time);
    tell();
}

static void added_client(int fd) {
    struct timespec while_it_reads = {0, 50000000};
    for (size_t at = 0; at < sizeof segments / sizeof *segments; at++) {
        await();
        expect(send(fd, data, segments[at], MSG_NOSIGNAL | MSG_MORE) == (ssize_t)segments[at], "all is taken");
        nanosleep(&while_it_reads, NULL);
        expect(send(fd, data, 10, MSG_NOSIGNAL | MSG_MORE) == 10, "all is taken");
    }
    await();
}

/* -- full segments go out, the rest is held; all of it comes -- */
static void limit_server(int fd) {
    uint64_t hash = HASH_START;
    size_t got = recv_upto(fd, data, SEGMENTS * 65483);
    hash = hash_more(hash, data, got);
    tell();
    got = recv_upto(fd, data, sizeof data);
    say("all: %016lx %zu", hash_more(hash, data, got), SEGMENTS * 65483 + got);
}

static void limit_client(int fd) {
    uint64_t seed = 7;
    rng_fill(&seed, data, SEGMENTS * 65483 + 5000);
    cork(fd, 1);
    for (size_t at = 0; at < SEGMENTS * 65483 + 5000;) {
        size_t left = SEGMENTS * 65483 + 5000 - at;
        ssize_t sent = send(fd, data + at, left < 7000 ? left : 7000, MSG_NOSIGNAL);
        expect(sent > 0, "a blocking send");
        at += sent;
    }
    await();
    shutdown(fd, SHUT_WR);
}

/* -- the stream ends, or its sender does -- */
static void ends_server(int fd) {
    tell();
    await();
    int64_t before = now_ms();
    size_t got = recv_upto(fd, data, sizeof data);
    say("%zu, not held for long: %d", got, now_ms() - before < 150);
}

static void shutdown_client(int fd) {
    await();
    cork(fd, 1);
    send_part(fd, 0);
    shutdown(fd, SHUT_WR);
    tell();
    char byte;
    expect(recv(fd, &byte, 1, 0) == 0, "the other end closes");
}

static void close_client(int fd) {
    await();
    send_part(fd, MSG_MORE);
    close(fd);
    tell();
}

static void killed_client(int fd) {
    await();
    pid_t child = fork();
    if (child == 0) {
        cork(fd, 1);
        send_part(fd, 0);
        raise(SIGKILL);
    }
    int status;
    close(fd);
    expect(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child is killed");
    tell();
}

/* -- the bytes that are held, and the cork, where a lane ends -- */
static void leaves_server(int fd) {
    uint64_t hash = HASH_START;
    recv_all(fd, data, 6 * PART);
    say("all: %016lx", hash_more(hash, data, 6 * PART));
}

static void leaves_client(int fd) {
    uint64_t seed = 3;
    int on = 1;
    rng_fill(&seed, data, PART);
    for (int round = 0; round < 2; round++) {
        cork(fd, 1);
        send_part(fd, 0);
        send_part(fd, MSG_MORE);
        if (setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on)) die("SO_OOBINLINE");
        send_part(fd, 0);
        cork(fd, 0);
    }
    char byte;
    expect(recv(fd, &byte, 1, 0) == 0, "the other end closes");
}

/* -- one edge for what was held -- */
static void edge_server(int fd) {
    int once = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    for (int round = 0; round < ROUNDS; round++) {
        tell();
        await();
        int none = epoll_wait(set, &event, 1, 0) == 0;
        tell();
        int first = epoll_wait(set, &event, 1, 10000), again = epoll_wait(set, &event, 1, 0);
        ssize_t got = recv(fd, data, sizeof data, 0);
        once |= none && first == 1 && again == 0 && got == 2 * PART;
        recv_all(fd, data, 2 * PART - got);
    }
    say("one edge, all of it: %d", once);
}

static void edge_client(int fd) {
    for (int round = 0; round < ROUNDS; round++) {
        await();
        cork(fd, 1);
        send_part(fd, 0);
        send_part(fd, 0);
        tell();
        await();
        cork(fd, 0);
    }
    char byte;
    expect(recv(fd, &byte, 1, 0) == 0, "the other end closes");
}

/* -- corked before there is a lane, held when one opens -- */
static void early_server(int fd) {
    char byte;
    recv_all(fd, data, 200 * PART);
    expect(send(fd, "!", 1, 0) == 1, "an answer");
    say("then: %s", outcome(recv(fd, &byte, 1, 0)));
}

static void early_client(int fd) {
    char byte;
    for (int message = 0; message < 200; message++) {
        cork(fd, 1);
        send_part(fd, 0);
        cork(fd, 0);
    }
    recv_all(fd, &byte, 1);
}

static const struct bed_case cases[] = {
    {"more", more_server, more_client},         {"cork", cork_server, cork_client},
    {"push", push_server, push_client},         {"timer", timer_server, timer_client},
    {"added", added_server, added_client},
    {"limit", limit_server, limit_client},      {"shutdown", ends_server, shutdown_client},
    {"close", ends_server, close_client},       {"killed", ends_server, killed_client},
    {"leaves", leaves_server, leaves_client},   {"edge", edge_server, edge_client},
    {"early", early_server, early_client},      {0},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
