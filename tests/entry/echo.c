// A server that gives back what it gets, and a client that checks it, in several manners.
// echo serve MANNER: prints its port, serves connections until it is killed.
// echo dial PORT MANNER ROUNDS: prints "done" at the end. With HOLD set, it goes on until there is a file of that name.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 70000
static char manner[16];

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static int is(const char *name) {
    return strcmp(manner, name) == 0;
}

static void wait_for(int fd, short events) {
    if (is("poll")) {
        struct pollfd one = {fd, events, 0};
        if (poll(&one, 1, -1) != 1) fail("poll");
    } else if (is("select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        if (select(fd + 1, events == POLLIN ? &set : 0, events == POLLOUT ? &set : 0, 0, 0) != 1) fail("select");
    }
}

static ssize_t get(int fd, char *to, size_t n) {
    wait_for(fd, POLLIN);
    if (is("ticks")) {
        ssize_t got = read(fd, to, n);
        if (got < 0 && errno == EINTR) fail("not restarted");
        return got;
    }
    if (is("recv")) return recv(fd, to, n, 0);
    if (is("message")) {
        struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        return recvmsg(fd, &message, 0);
    }
    if (is("vector")) {
        struct iovec parts[2] = {{to, n / 2}, {to + n / 2, n - n / 2}};
        return readv(fd, parts, 2);
    }
    return read(fd, to, n);
}

static ssize_t put(int fd, const char *from, size_t n) {
    wait_for(fd, POLLOUT);
    if (is("recv")) return send(fd, from, n, MSG_NOSIGNAL);
    if (is("message")) {
        struct iovec parts[2] = {{(char *)from, n / 2}, {(char *)from + n / 2, n - n / 2}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        return sendmsg(fd, &message, MSG_NOSIGNAL);
    }
    if (is("vector")) {
        struct iovec parts[2] = {{(char *)from, n / 2}, {(char *)from + n / 2, n - n / 2}};
        return writev(fd, parts, 2);
    }
    return write(fd, from, n);
}

static void put_all(int fd, const char *from, size_t n) {
    while (n > 0) {
        ssize_t done = put(fd, from, n);
        if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (done <= 0) fail("put");
        from += done;
        n -= done;
    }
}

static void *serve_one(void *argument) {
    int fd = (int)(long)argument;
    char *bytes = malloc(MOST);
    ssize_t n;
    while ((n = get(fd, bytes, MOST)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0) put_all(fd, bytes, n);
    close(fd);
    free(bytes);
    return 0;
}

// Edge-triggered, one registration for each connection, as Go's netpoll has it.
static void serve_edges(int listener) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {EPOLLIN, {.fd = listener}}, told[16];
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &wanted);
    for (;;) {
        int n = epoll_wait(set, told, 16, -1);
        for (int at = 0; at < n; at++) {
            int fd = told[at].data.fd;
            if (fd == listener) {
                int new = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
                struct epoll_event edge = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = new}};
                if (new >= 0) epoll_ctl(set, EPOLL_CTL_ADD, new, &edge);
                continue;
            }
            static char bytes[MOST];
            ssize_t got;
            while ((got = read(fd, bytes, sizeof bytes)) > 0) put_all(fd, bytes, got);
            if (got == 0) close(fd);
        }
    }
}

static void serve(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, size) || listen(listener, 64)) fail("listen");
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    if (is("edges")) serve_edges(listener);
    for (;;) {
        int fd = accept(listener, 0, 0);
        if (fd < 0) fail("accept");
        if (is("threads")) {
            pthread_t thread;
            pthread_create(&thread, 0, serve_one, (void *)(long)fd);
            pthread_detach(thread);
        } else if (is("forks")) {
            if (fork() == 0) {
                close(listener);
                serve_one((void *)(long)fd);
                _exit(0);
            }
            close(fd);
        } else {
            serve_one((void *)(long)fd);
        }
    }
}

static void tick(int signal) {
    (void)signal;
}

static void dial(int port, int rounds) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (connect(fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (is("ticks")) {
        struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &action, 0);
        struct itimerval often = {{0, 300}, {0, 300}};
        setitimer(ITIMER_REAL, &often, 0);
    }
    static char sent[MOST], got[MOST];
    unsigned seed = 1;
    const char *hold = getenv("HOLD");
    for (int round = 0; round < rounds || (hold && access(hold, F_OK)); round++) {
        seed = seed * 1103515245 + 12345;
        size_t n = seed % 7 == 0 ? 1 + seed / 7 % MOST : 1 + seed / 7 % 200, have = 0;
        for (size_t at = 0; at < n; at++) sent[at] = (char)(seed + at * 31);
        put_all(fd, sent, n);
        while (have < n) {
            ssize_t some = get(fd, got + have, n - have);
            if (some < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (some <= 0) fail("get");
            have += some;
        }
        if (memcmp(sent, got, n)) fail("other bytes");
    }
    shutdown(fd, SHUT_WR);
    errno = 0;
    if (get(fd, got, 1) != 0) fail("no end");
    puts("done");
}

int main(int n, char **arguments) {
    if (n == 3 && !strcmp(arguments[1], "serve")) {
        strncpy(manner, arguments[2], sizeof manner - 1);
        serve();
    }
    if (n != 5) return 2;
    strncpy(manner, arguments[3], sizeof manner - 1);
    dial(atoi(arguments[2]), atoi(arguments[4]));
    return 0;
}
