/* Echo servers that rely on what TCP promises, as programs do:
 *   victim threads PORT   a thread for each connection, blocking
 *   victim peek PORT      the same; looks at bytes with MSG_PEEK first, and they must be what is read then
 *   victim trusting PORT  one thread, poll, and blocking reads: what poll says is there is there
 *   victim knowing PORT   one thread, asks each connection by itself (FIONREAD, poll, a peek, a read of one byte of several)
 *                         and then a set without waiting, which must know of what was shown
 * A connection that its peer breaks is closed; anything else than TCP's own ways for that ends the server. */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#define CHUNK 16384
#define MOST 512
/* What the hostile peer's Mute publishes. */
#define UNTOLD 8

static int peeks;
/* A set of which no hook knows. */
static int kernels;

static int is_broken(void) {
    return errno == ECONNRESET || errno == EPIPE;
}

/* 1 when the connection is over. */
static int echo_once(int fd) {
    unsigned char bytes[CHUNK], peeked[CHUNK];
    ssize_t ahead = peeks ? recv(fd, peeked, CHUNK, MSG_PEEK) : 0;
    if (ahead < 0 && is_broken()) return 1;
    if (ahead < 0) die("peek");
    ssize_t got = recv(fd, bytes, CHUNK, 0);
    if (got < 0 && is_broken()) return 1;
    if (got < 0) die("recv");
    expect(got >= ahead && !memcmp(bytes, peeked, ahead), "what was peeked at is read");
    if (got == 0) return 1;
    for (ssize_t sent = 0; sent < got;) {
        ssize_t more = send(fd, bytes + sent, got - sent, MSG_NOSIGNAL);
        if (more < 0 && is_broken()) return 1;
        if (more < 0) die("send");
        sent += more;
    }
    return 0;
}

static void *serve(void *argument) {
    int fd = (int)(intptr_t)argument;
    while (!echo_once(fd)) {}
    close(fd);
    return NULL;
}

static void serve_threads(int listener) {
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0) die("accept");
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd)) die("pthread_create");
        pthread_detach(thread);
    }
}

/* An answer that finds no room is dropped with its connection: a peer that does not read may stop nobody. */
static int echo_trusting(int fd) {
    unsigned char bytes[CHUNK];
    ssize_t got = recv(fd, bytes, CHUNK, 0);
    if (got < 0 && !is_broken()) die("recv");
    if (got <= 0) return 1;
    ssize_t sent = send(fd, bytes, got, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && !is_broken()) die("send");
    return sent < got;
}

static void serve_trusting(int listener) {
    struct pollfd fds[MOST] = {{listener, POLLIN, 0}};
    for (int used = 1;;) {
        if (poll(fds, used, -1) < 0) die("poll");
        for (int i = used - 1; i > 0; i--) {
            if (!fds[i].revents || !echo_trusting(fds[i].fd)) continue;
            close(fds[i].fd);
            fds[i] = fds[--used];
        }
        if (fds[0].revents && used < MOST) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) die("accept");
            fds[used++] = (struct pollfd){fd, POLLIN, 0};
        }
    }
}

/* Whether `way` shows bytes; what it takes of them goes to `bytes`, how many to `taken`. */
static int shows(int fd, int way, unsigned char *bytes, ssize_t *taken) {
    struct pollfd one = {fd, POLLIN, 0};
    int count = 0;
    *taken = 0;
    switch (way) {
    case 0:
        if (ioctl(fd, FIONREAD, &count)) die("FIONREAD");
        return count > 0;
    case 1: return poll(&one, 1, 0) == 1 && one.revents == POLLIN;
    case 2: return recv(fd, bytes, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    default:
        /* All was read before, and no message is of one byte: there is more. */
        *taken = recv(fd, bytes, 1, MSG_DONTWAIT);
        if (*taken != 1) *taken = 0;
        return *taken == 1;
    }
}

/* Whether the kernel itself tells its sets of `fd`: a moment after its own poll() shows it. */
static int kernel_tells(int fd) {
    struct epoll_event events[MOST];
    long count = unseen_call(SYS_epoll_wait, kernels, (long)events, MOST, 0);
    for (int i = 0; i < count; i++)
        if (events[i].data.fd == fd) return 1;
    return 0;
}

/* 1 when the connection is over. */
static int echo_knowing(int set, int fd, int way) {
    static unsigned char bytes[CHUNK];
    struct epoll_event events[MOST];
    ssize_t taken = 0, got = 0;
    int shown = shows(fd, way, bytes, &taken), told = kernel_tells(fd), known = 0;
    int count = shown ? epoll_wait(set, events, MOST, 0) : 0;
    for (int i = 0; i < count; i++) known |= events[i].data.fd == fd;
    expect(!shown || known || !told, "the set knows of what the kernel's would tell");
    while ((got = recv(fd, bytes + taken, CHUNK - taken, MSG_DONTWAIT)) > 0) {
        expect(!shown || known || bytes[0] != UNTOLD, "the set knows of bytes that were shown");
        shown = 0;
        if (send(fd, bytes, got + taken, MSG_NOSIGNAL | MSG_DONTWAIT) != got + taken) return 1;
        taken = 0;
    }
    return got == 0 || errno != EAGAIN;
}

static void serve_knowing(int listener) {
    static int fds[MOST];
    static unsigned asked[MOST];
    int set = epoll_create1(EPOLL_CLOEXEC), used = 0;
    kernels = (int)unseen_call(SYS_epoll_create1, EPOLL_CLOEXEC, 0, 0, 0);
    for (;;) {
        struct pollfd guests = {listener, POLLIN, 0};
        /* The set is armed: this thread sees what came before anybody tells it. */
        struct epoll_event event;
        epoll_wait(set, &event, 1, 1);
        for (int i = used - 1; i >= 0; i--) {
            if (!echo_knowing(set, fds[i], asked[i]++ % 4)) continue;
            close(fds[i]);
            fds[i] = fds[--used];
        }
        if (poll(&guests, 1, 0) == 1 && used < MOST) {
            int fd = accept(listener, NULL, NULL);
            if (fd < 0) die("accept");
            struct epoll_event in = {EPOLLIN, {.fd = fd}};
            if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &in)) die("EPOLL_CTL_ADD");
            expect(!unseen_call(SYS_epoll_ctl, kernels, EPOLL_CTL_ADD, fd, (long)&in), "the kernel's set takes it");
            fds[used++] = fd;
        }
    }
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: victim threads|peek|trusting|knowing PORT");
    int listener = listen_on(atoi(argv[2]));
    peeks = !strcmp(argv[1], "peek");
    if (!strcmp(argv[1], "trusting")) serve_trusting(listener);
    if (!strcmp(argv[1], "knowing")) serve_knowing(listener);
    serve_threads(listener);
}
