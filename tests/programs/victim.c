/* Echo servers that rely on what TCP promises, as programs do:
 *   victim threads PORT   a thread for each connection, blocking
 *   victim peek PORT      the same; looks at bytes with MSG_PEEK first, and they must be what is read then
 *   victim trusting PORT  one thread, poll, and blocking reads: what poll says is there is there
 * A connection that its peer breaks is closed; anything else than TCP's own ways for that ends the server. */
#include "bed.h"
#include <pthread.h>

#define CHUNK 16384
#define MOST 512

static int peeks;

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

int main(int argc, char **argv) {
    expect(argc == 3, "usage: victim threads|peek|trusting PORT");
    int listener = listen_on(atoi(argv[2]));
    peeks = !strcmp(argv[1], "peek");
    if (!strcmp(argv[1], "trusting")) serve_trusting(listener);
    serve_threads(listener);
}
