/* What the C programs of the test-bed share: seeded bytes and their hash, errors by name, sockets, and an
 * out-of-band signal between the two ends (two FIFOs), so that a case never has to guess when the other end acted.
 * Every program prints only what must be the same on TCP and on a lane. */
#ifndef BED_H
#define BED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

static UNUSED void die(const char *what) {
    fprintf(stderr, "bed: %s: %s\n", what, strerror(errno));
    exit(70);
}

static UNUSED void expect(int truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "bed: not so: %s (errno %s)\n", what, strerror(errno));
        exit(71);
    }
}

/* A system call of which no hook can know, not even one in front of libc's syscall(): the instruction itself. The result is
 * the kernel's, -errno where it fails. */
static UNUSED long unseen_call(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long call __asm__("x8") = number, result __asm__("x0") = a, second __asm__("x1") = b;
    register long third __asm__("x2") = c, fourth __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(call), "r"(second), "r"(third), "r"(fourth) : "memory");
    return result;
#else
#error "the raw system call of this machine is not written yet"
#endif
}

/* "12" for a result, the errno's name for a failure: 0 and EOF look different from EAGAIN in what is compared. */
static UNUSED const char *outcome(long result) {
    static _Thread_local char text[4][32];
    static _Thread_local unsigned turn;
    char *out = text[turn++ % 4];
    if (result >= 0) snprintf(out, 32, "%ld", result);
    else snprintf(out, 32, "%s", strerrorname_np(errno));
    return out;
}

/* splitmix64: the same bytes at both ends from the same seed. */
static UNUSED uint64_t rng_next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static UNUSED void rng_fill(uint64_t *state, unsigned char *to, size_t count) {
    for (size_t i = 0; i < count; i += 8) {
        uint64_t word = rng_next(state);
        memcpy(to + i, &word, count - i < 8 ? count - i : 8);
    }
}

/* FNV-1a, 64 bits, byte by byte: independent of how the stream was cut into calls. */
#define HASH_START 0xcbf29ce484222325u
static UNUSED uint64_t hash_more(uint64_t hash, const void *from, size_t count) {
    const unsigned char *bytes = from;
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static UNUSED int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static UNUSED int64_t now_ms(void) {
    return now_ns() / 1000000;
}

static UNUSED struct sockaddr_in bed_address(int port) {
    const char *host = getenv("BED_HOST");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    expect(inet_pton(AF_INET, host ? host : "127.0.0.1", &address.sin_addr) == 1, "BED_HOST is an IPv4 address");
    return address;
}

static UNUSED int listen_on(int port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = bed_address(port);
    if (listener < 0) die("socket");
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address)) die("bind");
    if (listen(listener, 512)) die("listen");
    return listener;
}

static UNUSED int accept_one(int listener) {
    int fd = accept(listener, NULL, NULL), on = 1;
    if (fd < 0) die("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* BED_SOURCE fixes the port that the client comes from. */
static UNUSED int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = bed_address(port);
    const char *source = getenv("BED_SOURCE");
    if (fd < 0) die("socket");
    if (source) {
        struct sockaddr_in from = {.sin_family = AF_INET, .sin_port = htons(atoi(source))};
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, (struct sockaddr *)&from, sizeof from)) die("bind");
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static UNUSED void send_all(int fd, const void *from, size_t count) {
    const char *bytes = from;
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) die("send");
        bytes += sent;
        count -= sent;
    }
}

/* Bytes read: less than `count` only at the end of the stream. */
static UNUSED size_t recv_upto(int fd, void *to, size_t count) {
    size_t have = 0;
    while (have < count) {
        ssize_t got = recv(fd, (char *)to + have, count - have, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) die("recv");
        if (got == 0) break;
        have += got;
    }
    return have;
}

static UNUSED void recv_all(int fd, void *to, size_t count) {
    expect(recv_upto(fd, to, count) == count, "the stream ends only where its sender ended it");
}

/* Answers messages of 100 bytes. The last one, which begins with an 'e', by the end of what it writes; then the other end closes. */
static UNUSED void echo_to_the_end(int fd) {
    char message[100];
    do {
        recv_all(fd, message, sizeof message);
        if (message[0] != 'e') send_all(fd, message, sizeof message);
    } while (message[0] != 'e');
    shutdown(fd, SHUT_WR);
    expect(recv(fd, message, 1, 0) == 0, "the client closes");
    close(fd);
}

/* Whether a warm-up of `rounds` so far, begun at `began`, is over: when the file that BED_WARM_UNTIL names is there,
 * which tells that the lanes are; else after 200 rounds and BED_WARM_MS (60). */
static UNUSED int is_warm(int rounds, int64_t began) {
    const char *file = getenv("BED_WARM_UNTIL"), *ms = getenv("BED_WARM_MS");
    return file ? !access(file, F_OK) : rounds >= 200 && now_ms() >= began + (ms ? atoi(ms) : 60);
}

/* Ping-pong: long enough for a lane to open where one can. Soon at a walk: a storm of wake-ups by many threads, on TCP as on
 * lanes, can keep other processes from the CPUs for seconds (Linux 6.18), the broker among them. */
static UNUSED void warm_up_client(int fd) {
    char message[1024] = {0};
    int64_t began = now_ms();
    for (int round = 0;; round++) {
        if (round > 256) usleep(1000);
        message[0] = is_warm(round, began) ? 'e' : 'c';
        send_all(fd, message, sizeof message);
        recv_all(fd, message, sizeof message);
        if (message[0] == 'e') return;
    }
}

static UNUSED void warm_up_server(int fd) {
    char message[1024] = {0};
    do {
        recv_all(fd, message, sizeof message);
        send_all(fd, message, sizeof message);
    } while (message[0] != 'e');
}

/* The out-of-band signal. BED_SYNC names a directory with the FIFOs "to-server" and "to-client". */
static int tell_fd = -1, wait_fd = -1;

static UNUSED void sync_open(int is_server) {
    char path[512];
    const char *dir = getenv("BED_SYNC");
    expect(dir != NULL, "BED_SYNC is set");
    snprintf(path, sizeof path, "%s/%s", dir, is_server ? "to-client" : "to-server");
    tell_fd = open(path, O_RDWR | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/%s", dir, is_server ? "to-server" : "to-client");
    wait_fd = open(path, O_RDWR | O_CLOEXEC);
    if (tell_fd < 0 || wait_fd < 0) die("open of a FIFO");
}

static UNUSED void tell(void) {
    if (write(tell_fd, "!", 1) != 1) die("tell");
}

static UNUSED void await(void) {
    char byte;
    ssize_t got;
    while ((got = read(wait_fd, &byte, 1)) < 0 && errno == EINTR) {}
    if (got != 1) die("await");
}

/* Returns when a thread of a process sleeps: in each of so many looks, of which one alone might find it on its way there. */
static UNUSED void await_sleep(pid_t process, pid_t thread) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", process, thread);
    for (int looks = 0; looks < 20; looks++) {
        FILE *stat = fopen(path, "r");
        expect(stat && fgets(line, sizeof line, stat), "the thread is there");
        fclose(stat);
        if (strrchr(line, ')')[2] != 'S') looks = -1;
        usleep(500);
    }
}

static UNUSED void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static UNUSED void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

/* A case has two ends, each in a process of its own, on one connection that is warm. */
struct bed_case {
    const char *name;
    void (*server)(int fd);
    void (*client)(int fd);
};

/* main() of a program of cases: PROGRAM server|client CASE PORT */
static UNUSED int run_case(int argc, char **argv, const struct bed_case *cases) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    for (; cases->name; cases++) {
        if (strcmp(cases->name, argv[2])) continue;
        sync_open(is_server);
        if (is_server) {
            int listener = listen_on(port), fd = accept_one(listener);
            close(listener);
            warm_up_server(fd);
            cases->server(fd);
        } else {
            int fd = connect_to(port);
            warm_up_client(fd);
            cases->client(fd);
        }
        say("done");
        return 0;
    }
    expect(0, "the case is known");
    return 71;
}
#endif
