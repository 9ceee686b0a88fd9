/* An echo server on each way to wait, and one client that drives many connections.
 *   echo server HOW PORT CONNS        HOW: lt et oneshot exclusive poll select
 *   echo client PORT CONNS ROUNDS     echo client-poll ... (waits by poll instead of epoll)
 * The server ends when CONNS connections have come and gone. */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define CHUNK 32768
struct link { /* one echoed connection: what was read and not yet written */
    int fd;
    size_t have, sent;
    unsigned char buffer[CHUNK];
};

static int conns, finished;
static uint64_t echoed;
static pthread_mutex_t tally = PTHREAD_MUTEX_INITIALIZER;

static void set_nonblocking(int fd) {
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK)) die("fcntl");
}

static int is_peer_gone(void) {
    return errno == ECONNRESET || errno == EPIPE;
}

/* Moves bytes until the socket would block. 0: go on, 1: the peer is done, or was killed. */
static int pump(struct link *link) {
    for (;;) {
        if (link->sent < link->have) {
            ssize_t sent = send(link->fd, link->buffer + link->sent, link->have - link->sent, MSG_NOSIGNAL);
            if (sent < 0 && errno == EAGAIN) return 0;
            if (sent < 0 && is_peer_gone()) return 1;
            if (sent < 0) die("send");
            link->sent += sent;
            continue;
        }
        ssize_t got = recv(link->fd, link->buffer, CHUNK, 0);
        if (got < 0 && errno == EAGAIN) return 0;
        if (got == 0 || (got < 0 && is_peer_gone())) return 1;
        if (got < 0) die("recv");
        link->have = got, link->sent = 0;
        pthread_mutex_lock(&tally);
        echoed += got;
        pthread_mutex_unlock(&tally);
    }
}

static uint32_t wants(const struct link *link) {
    return link->sent < link->have ? EPOLLOUT : EPOLLIN;
}

static int finish(struct link *link) {
    close(link->fd);
    free(link);
    pthread_mutex_lock(&tally);
    int all = ++finished == conns;
    pthread_mutex_unlock(&tally);
    return all;
}

static struct link *take(int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
    if (fd < 0 && errno == EAGAIN) return NULL;
    if (fd < 0) die("accept4");
    struct link *link = calloc(1, sizeof *link);
    link->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return link;
}

struct loop {
    int listener, set, is_et, is_oneshot;
};

static void *epoll_loop(void *argument) {
    struct loop *loop = argument;
    struct epoll_event events[64];
    for (;;) {
        int count = epoll_wait(loop->set, events, 64, 50);
        if (count < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < count; i++) {
            struct link *link = events[i].data.ptr;
            if (!link) {
                while ((link = take(loop->listener))) {
                    uint32_t mask = loop->is_et ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN;
                    if (loop->is_oneshot) mask = EPOLLIN | EPOLLET | EPOLLONESHOT;
                    struct epoll_event event = {mask, {.ptr = link}};
                    if (epoll_ctl(loop->set, EPOLL_CTL_ADD, link->fd, &event)) die("epoll_ctl add");
                }
                continue;
            }
            if (pump(link)) {
                finish(link);
                continue;
            }
            if (loop->is_et) continue;
            struct epoll_event event = {wants(link) | (loop->is_oneshot ? EPOLLET | EPOLLONESHOT : 0), {.ptr = link}};
            if (epoll_ctl(loop->set, EPOLL_CTL_MOD, link->fd, &event)) die("epoll_ctl mod");
        }
        pthread_mutex_lock(&tally);
        int all = finished == conns;
        pthread_mutex_unlock(&tally);
        if (all) return NULL;
    }
}

/* lt, et: one thread. oneshot: two threads on one set. exclusive: two threads, a set each, one listener. */
static void serve_epoll(int listener, const char *how) {
    struct loop loops[2];
    pthread_t threads[2];
    int threads_count = !strcmp(how, "oneshot") || !strcmp(how, "exclusive") ? 2 : 1;
    for (int i = 0; i < threads_count; i++) {
        loops[i] = (struct loop){listener, -1, !strcmp(how, "et"), !strcmp(how, "oneshot")};
        if (i == 1 && loops[i].is_oneshot) {
            loops[i].set = loops[0].set;
        } else {
            loops[i].set = epoll_create1(EPOLL_CLOEXEC);
            struct epoll_event event = {EPOLLIN | (strcmp(how, "exclusive") ? 0 : EPOLLEXCLUSIVE), {.ptr = NULL}};
            if (epoll_ctl(loops[i].set, EPOLL_CTL_ADD, listener, &event)) die("epoll_ctl listener");
        }
    }
    for (int i = 0; i < threads_count; i++)
        if (pthread_create(&threads[i], NULL, epoll_loop, &loops[i])) die("pthread_create");
    for (int i = 0; i < threads_count; i++) pthread_join(threads[i], NULL);
}

static void serve_poll(int listener) {
    struct pollfd fds[1024] = {{listener, POLLIN, 0}};
    struct link *links[1024] = {NULL};
    for (int used = 1;;) {
        if (poll(fds, used, -1) < 0) die("poll");
        for (int i = used - 1; i > 0; i--) {
            if (!fds[i].revents) continue;
            if (!pump(links[i])) {
                fds[i].events = wants(links[i]) == EPOLLIN ? POLLIN : POLLOUT;
                continue;
            }
            if (finish(links[i])) return;
            fds[i] = fds[--used];
            links[i] = links[used];
        }
        for (struct link *link; fds[0].revents && used < 1024 && (link = take(listener)); used++) {
            links[used] = link;
            fds[used] = (struct pollfd){link->fd, POLLIN, 0};
        }
    }
}

static void serve_select(int listener) {
    struct link *links[FD_SETSIZE] = {NULL};
    for (;;) {
        fd_set readable, writable;
        FD_ZERO(&readable);
        FD_ZERO(&writable);
        FD_SET(listener, &readable);
        for (int fd = 0; fd < FD_SETSIZE; fd++)
            if (links[fd]) FD_SET(fd, wants(links[fd]) == EPOLLIN ? &readable : &writable);
        if (select(FD_SETSIZE, &readable, &writable, NULL, NULL) < 0) die("select");
        for (int fd = 0; fd < FD_SETSIZE; fd++) {
            if (!links[fd] || !(FD_ISSET(fd, &readable) || FD_ISSET(fd, &writable)) || !pump(links[fd])) continue;
            struct link *gone = links[fd];
            links[fd] = NULL;
            if (finish(gone)) return;
        }
        for (struct link *link; FD_ISSET(listener, &readable) && (link = take(listener));) links[link->fd] = link;
    }
}

struct talk { /* the client's end: a stream of random bytes, and the same stream awaited */
    int fd, left;
    size_t size, sent, got;
    uint64_t out, in, hash;
    unsigned char message[60000];
};

static int next_message(struct talk *talk) {
    if (talk->left-- == 0) return 0;
    uint64_t word = rng_next(&talk->out);
    talk->size = word % 8 == 0 ? 1 + (word >> 8) % sizeof talk->message : 1 + (word >> 8) % 700;
    rng_fill(&talk->out, talk->message, talk->size);
    talk->sent = talk->got = 0;
    return 1;
}

/* 1 when the connection has had all its rounds. Writes and reads at once, so that neither side's buffer can jam. */
static int converse(struct talk *talk) {
    static unsigned char back[sizeof talk->message];
    for (;;) {
        int stuck = 1;
        if (talk->sent < talk->size) {
            ssize_t sent = send(talk->fd, talk->message + talk->sent, talk->size - talk->sent, MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN) die("send");
            if (sent > 0) talk->sent += sent, stuck = 0;
        }
        ssize_t got = recv(talk->fd, back, talk->size - talk->got, 0);
        if (got < 0 && errno != EAGAIN) die("recv");
        expect(got != 0, "the echo server stays");
        if (got > 0) {
            expect(!memcmp(back, talk->message + talk->got, got), "the echo is what was sent");
            talk->hash = hash_more(talk->hash, back, got);
            talk->got += got, stuck = 0;
            if (talk->got == talk->size && !next_message(talk)) return 1;
        }
        if (stuck) return 0;
    }
}

static void drive(int port, int rounds, int by_poll) {
    struct talk *talks = calloc(conns, sizeof *talks);
    struct pollfd *fds = calloc(conns, sizeof *fds);
    struct epoll_event events[64];
    int set = epoll_create1(EPOLL_CLOEXEC), open = conns;
    for (int i = 0; i < conns; i++) {
        struct talk *talk = &talks[i];
        *talk = (struct talk){.fd = connect_to(port), .left = rounds, .out = 1000 + i, .hash = HASH_START};
        set_nonblocking(talk->fd);
        next_message(talk);
        struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = talk}};
        fds[i] = (struct pollfd){talk->fd, POLLIN | POLLOUT, 0};
        if (!by_poll && epoll_ctl(set, EPOLL_CTL_ADD, talk->fd, &event)) die("epoll_ctl");
    }
    while (open > 0) {
        int count = by_poll ? poll(fds, conns, 20000) : epoll_wait(set, events, 64, 20000);
        if (count < 0) die("wait");
        expect(count > 0, "something happens within 20 s");
        for (int i = 0; i < (by_poll ? conns : count); i++) {
            if (by_poll && (fds[i].fd < 0 || !fds[i].revents)) continue;
            struct talk *talk = by_poll ? &talks[i] : events[i].data.ptr;
            if (converse(talk)) {
                close(talk->fd);
                fds[talk - talks].fd = -1;
                open--;
            } else if (by_poll) {
                fds[i].events = talk->sent < talk->size ? POLLIN | POLLOUT : POLLIN;
            }
        }
    }
    for (int i = 0; i < conns; i++) say("connection %d: %016lx", i, talks[i].hash);
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server HOW PORT CONNS | client|client-poll PORT CONNS ROUNDS");
    if (!strcmp(argv[1], "server")) {
        conns = atoi(argv[4]);
        int listener = listen_on(atoi(argv[3]));
        set_nonblocking(listener);
        if (!strcmp(argv[2], "poll")) serve_poll(listener);
        else if (!strcmp(argv[2], "select")) serve_select(listener);
        else serve_epoll(listener, argv[2]);
        say("echoed %lu on %d", echoed, finished);
    } else {
        conns = atoi(argv[3]);
        drive(atoi(argv[2]), atoi(argv[4]), !strcmp(argv[1], "client-poll"));
    }
    return 0;
}
