/* What is run in roots of other systems: it needs nothing but a libc, and is compiled against several.
 *   roots hello                    a line on each output, status 7
 *   roots run PROGRAM [ARG]...     a child by fork, one by vfork and one by posix_spawn; how each ended
 *   roots env NAME=VALUE... PROGRAM [ARG]...
 *   roots server PORT CONNS        echoes, one connection after the other; THREADED: each in a thread of its own
 *   roots client PORT CONNS ROUNDS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef THREADED
#include <pthread.h>
#endif

#define BULK (1 << 20)
extern char **environ;

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void started(const char *how, char **argv) {
    int status;
    pid_t child;
    fflush(NULL);
    if (!strcmp(how, "spawn")) {
        if ((errno = posix_spawn(&child, argv[0], NULL, NULL, argv, environ))) die("posix_spawn");
    } else {
        child = strcmp(how, "vfork") ? fork() : vfork();
        if (!child) {
            execv(argv[0], argv);
            _exit(126);
        }
    }
    if (child < 0 || waitpid(child, &status, 0) != child) die("a child");
    printf("%s: %s ended with %d\n", how, argv[0], WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static struct sockaddr_in at(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* A wait by poll for a small message, by epoll for what is long, so that both are seen. */
static void *echo(void *argument) {
    static __thread char buffer[65536];
    int fd = (int)(long)argument, set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll");
    for (;;) {
        if (epoll_wait(set, &event, 1, -1) != 1) die("epoll_wait");
        ssize_t got = read(fd, buffer, sizeof buffer);
        if (got < 0) die("read");
        if (!got) break;
        for (ssize_t sent = 0, n; sent < got; sent += n)
            if ((n = send(fd, buffer + sent, got - sent, MSG_NOSIGNAL)) < 0) die("send");
    }
    close(set);
    close(fd);
    return NULL;
}

static int server(int port, int conns) {
    struct sockaddr_in to = at(port);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&to, sizeof to) || listen(listener, 16)) die("listen");
    for (int i = 0; i < conns; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
#ifdef THREADED
        pthread_t thread;
        if ((errno = pthread_create(&thread, NULL, echo, (void *)(long)fd))) die("pthread_create");
        pthread_join(thread, NULL);
#else
        echo((void *)(long)fd);
#endif
    }
    printf("served %d\n", conns);
    return 0;
}

static void fill(unsigned char *bytes, int size, unsigned seed) {
    for (int i = 0; i < size; i++) bytes[i] = (seed = seed * 1103515245 + 12345) >> 16;
}

/* Sends, and reads the same back, with as much as fits under way. */
static void exchange(int fd, unsigned char *out, unsigned char *in, int size) {
    int sent = 0, got = 0;
    while (got < size) {
        struct pollfd poller = {.fd = fd, .events = POLLIN | (sent < size ? POLLOUT : 0)};
        if (poll(&poller, 1, -1) != 1) die("poll");
        if (poller.revents & POLLOUT) {
            struct iovec part = {out + sent, size - sent};
            struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
            ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (n < 0 && errno != EAGAIN) die("sendmsg");
            if (n > 0) sent += n;
        }
        if (poller.revents & (POLLIN | POLLHUP)) {
            ssize_t n = recv(fd, in + got, size - got, 0);
            if (n <= 0) die("recv");
            got += n;
        }
    }
    if (memcmp(out, in, size)) fputs("other bytes came back\n", stderr), exit(2);
}

static int client(int port, int conns, int rounds) {
    unsigned char *out = malloc(BULK), *in = malloc(BULK);
    struct sockaddr_in to = at(port);
    for (int i = 0; i < conns; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
        for (int round = 0; round < rounds; round++) {
            fill(out, 100, round);
            exchange(fd, out, in, 100);
        }
        fill(out, BULK, i);
        exchange(fd, out, in, BULK);
        close(fd);
    }
    printf("%d rounds on %d connections\n", rounds, conns);
    return 0;
}

static volatile sig_atomic_t signalled;

static void note(int number) {
    signalled = number;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "hello")) {
        struct sigaction action = {.sa_handler = note};
        if (sigaction(SIGUSR1, &action, NULL) || raise(SIGUSR1) || signalled != SIGUSR1) die("a signal");
        if (signal(SIGUSR1, SIG_DFL) != note) die("signal");
        puts("hello");
        fputs("a word for the other side\n", stderr);
        return 7;
    }
    if (!strcmp(what, "run") && argc > 2) {
        started("fork", argv + 2), started("vfork", argv + 2), started("spawn", argv + 2);
        return 0;
    }
    if (!strcmp(what, "env")) {
        char **next = argv + 2;
        while (*next && strchr(*next, '=')) putenv(*next++);
        if (*next) execv(*next, next);
        die("execv");
    }
    if (!strcmp(what, "server") && argc > 3) return server(atoi(argv[2]), atoi(argv[3]));
    if (!strcmp(what, "client") && argc > 4) return client(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    fputs("see the source\n", stderr);
    return 64;
}
