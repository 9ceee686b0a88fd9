/* A process with threads talks to itself, and no call of it has anything to wait for: connect() to a listening socket, accept()
 * of what has come, epoll_wait() and poll() with no time, send() and recv() that do not block. Prints for each kind of call how often one
 * slept all the same, by the kernel's count of the thread's voluntary switches; on stderr, how long the slowest took, in us, without what
 * it waited for a CPU.
 *   firsts WHO PORT CONNECTIONS ROUNDS [LATER]    then the same once more for each line that comes by stdin, with LATER connections
 * WHO: itself; its forked child; or raised, after it has raised its limit of descriptors with threads about, as Java does */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { CONNECT, ACCEPT, SEND, RECV, WAIT, KINDS };
static const char *const names[] = {"connect", "accept", "send", "recv", "wait"};
/* By the client's thread and the server's. */
static struct { long slept, slowest; } seen[2][KINDS];
static int port, connections, rounds, listener;

static long switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* How long this thread has wanted a CPU that others had. */
static int64_t kept_us(void) {
    static _Thread_local int file = -1;
    char text[64] = "";
    if (file < 0 && (file = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) < 0) die("schedstat");
    if (pread(file, text, sizeof text - 1, 0) <= 0) die("schedstat");
    return atoll(strchr(text, ' ')) / 1000;
}

#define TIMED(side, kind, call) ({ \
    long before = switches(); \
    int64_t kept = kept_us(), begin = now_us(); \
    __typeof__(call) result = call; \
    int failed = errno; \
    int64_t took = now_us() - begin; \
    took -= kept_us() - kept; \
    seen[side][kind].slept += switches() - before; \
    if (took > seen[side][kind].slowest) seen[side][kind].slowest = took; \
    errno = failed; \
    result; \
})

static void move(int side, int fd, int sends) {
    char message[64] = "x";
    for (size_t moved = 0; moved < sizeof message;) {
        struct pollfd readable = {fd, POLLIN, 0};
        while (!sends && TIMED(side, WAIT, poll(&readable, 1, 0)) == 0) usleep(100);
        ssize_t count = sends ? TIMED(side, SEND, send(fd, message + moved, sizeof message - moved, MSG_DONTWAIT))
                              : TIMED(side, RECV, recv(fd, message + moved, sizeof message - moved, MSG_DONTWAIT));
        if (count > 0) moved += count;
        else if (count == 0 || errno != EAGAIN) die("move");
        else usleep(100);
    }
}

static void *serve(void *unused) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < connections; i++) {
        struct pollfd ready = {listener, POLLIN, 0};
        if (poll(&ready, 1, -1) != 1) die("poll");
        int fd = TIMED(1, ACCEPT, accept(listener, NULL, NULL));
        if (fd < 0) die("accept");
        struct epoll_event event = {EPOLLIN, {.fd = fd}};
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
        for (int round = 0; round < rounds; round++) {
            while (TIMED(1, WAIT, epoll_wait(set, &event, 1, 0)) == 0) usleep(100);
            move(1, fd, 0);
            move(1, fd, 1);
        }
        close(fd);
    }
    close(set);
    return unused;
}

static void *talk(void *unused) {
    struct sockaddr_in to = bed_address(port);
    for (int i = 0; i < connections; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (TIMED(0, CONNECT, connect(fd, (struct sockaddr *)&to, sizeof to))) die("connect");
        for (int round = 0; round < rounds; round++) {
            move(0, fd, 1);
            move(0, fd, 0);
        }
        close(fd);
    }
    return unused;
}

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

int main(int argc, char **argv) {
    expect(argc == 5 || argc == 6, "usage: WHO PORT CONNECTIONS ROUNDS [LATER]");
    port = atoi(argv[2]), connections = atoi(argv[3]), rounds = atoi(argv[4]);
    pthread_t another;
    int status;
    pid_t child = strcmp(argv[1], "child") ? 0 : fork();
    if (child > 0) return waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 72;
    if (child < 0 || pthread_create(&another, NULL, idle, NULL)) die("another");
    if (!strcmp(argv[1], "raised")) {
        struct rlimit limit;
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    }
    listener = listen_on(port);
    do {
        pthread_t threads[2];
        memset(seen, 0, sizeof seen);
        pthread_create(&threads[1], NULL, serve, NULL);
        pthread_create(&threads[0], NULL, talk, NULL);
        for (int side = 0; side < 2; side++) pthread_join(threads[side], NULL);
        for (int kind = 0; kind < KINDS; kind++) {
            int side = seen[1][kind].slowest > seen[0][kind].slowest;
            printf("%s%s %ld", kind ? ", " : "", names[kind], seen[0][kind].slept + seen[1][kind].slept);
            fprintf(stderr, "%s %ld us\n", names[kind], seen[side][kind].slowest);
        }
        puts("");
        fflush(stdout);
        if (argc == 6) connections = atoi(argv[5]);
    } while (getchar() == '\n');
    return 0;
}
