/* An echo server that waits by one system call, in one way to make it, for connection after connection; its client.
 *   seen server PORT CALLS WHOS ROUNDS WAY      WAY: raw (the instruction itself), syscall (libc's syscall), libc (by its name)
 *   seen client PORT CALLS WHOS ROUNDS          CALLS, WHOS: how many of them
 * The connections go through every call x a blocking or a non-blocking socket x who waits: one thread; two threads, of which
 * one waits in that way and one by libc's name; one thread that waits by libc's name for the first half of the rounds. */
#include "bed.h"
#include <linux/aio_abi.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum call { POLL, PPOLL, SELECT, PSELECT, AIO, WAIT, PWAIT, PWAIT2 };
enum way { RAW, SYSCALL, LIBC };
enum who { ONE, MIXED, LATER };

static const char *const calls[] = {"poll", "ppoll", "select", "pselect", "io_submit", "epoll_wait", "epoll_pwait", "epoll_pwait2"};
static const char *const names[] = {"one", "mixed", "later"};
static const uint64_t NAME = 0xfedcba9876543210u; /* like nothing that anybody else would put there */

static long raw_call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long call __asm__("x8") = number, result __asm__("x0") = a, second __asm__("x1") = b;
    register long third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e, sixth __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(result) : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth) : "memory");
#endif
    if (result >= 0) return result;
    errno = -result;
    return -1;
}

static long made(enum way way, long number, long a, long b, long c, long d, long e, long f) {
    return way == RAW ? raw_call(number, a, b, c, d, e, f) : syscall(number, a, b, c, d, e, f);
}

/* The calls that a machine does not have are those that it has by another name. */
#ifndef SYS_poll
#define SYS_poll -1
#define SYS_select -1
#define SYS_epoll_wait -1
#endif

static int has_set(enum call call) {
    return call >= WAIT;
}

struct guest {
    int fd, set, rounds;
    enum call call;
    pthread_mutex_t lock;
};

/* Linux AIO's poll, which libc has no name for. */
static long aio_poll(enum way way, int fd, struct timespec *patience) {
    static aio_context_t context; /* for all: to end one takes the kernel 10 ms */
    struct iocb job = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = fd, .aio_buf = POLLIN}, *jobs = &job;
    struct io_event event;
    if (!context && syscall(SYS_io_setup, 8, &context)) die("io_setup");
    if (made(way, SYS_io_submit, context, 1, (long)&jobs, 0, 0, 0) != 1) die("io_submit");
    return made(way, SYS_io_getevents, context, 1, 1, (long)&event, (long)patience, 0);
}

/* Waits until there is something to read. What the set tells must be what was put there, but where it is waited for by libc, too. */
static void wait_for(struct guest *guest, enum way way, enum who who) {
    struct pollfd one = {guest->fd, POLLIN, 0};
    struct epoll_event event = {0};
    struct timespec patience = {30, 0};
    struct timeval patience_us = {30, 0};
    fd_set reading;
    long fds = (long)&one, events = (long)&event, time = (long)&patience, bits = (long)&reading, ready = -1;
    int fd = guest->fd, set = guest->set, by_name = way == LIBC;
    FD_ZERO(&reading);
    FD_SET(fd, &reading);
    switch (guest->call) {
    case POLL:
        ready = by_name || SYS_poll < 0 ? poll(&one, 1, 30000) : made(way, SYS_poll, fds, 1, 30000, 0, 0, 0);
        break;
    case PPOLL:
        ready = by_name ? ppoll(&one, 1, &patience, NULL) : made(way, SYS_ppoll, fds, 1, time, 0, 8, 0);
        break;
    case SELECT:
        ready = by_name || SYS_select < 0 ? select(fd + 1, &reading, NULL, NULL, &patience_us) : made(way, SYS_select, fd + 1, bits, 0, 0, (long)&patience_us, 0);
        break;
    case PSELECT:
        ready = by_name ? pselect(fd + 1, &reading, NULL, NULL, &patience, NULL) : made(way, SYS_pselect6, fd + 1, bits, 0, 0, time, 0);
        break;
    case WAIT:
        ready = by_name || SYS_epoll_wait < 0 ? epoll_wait(set, &event, 1, 30000) : made(way, SYS_epoll_wait, set, events, 1, 30000, 0, 0);
        break;
    case PWAIT:
        ready = by_name ? epoll_pwait(set, &event, 1, 30000, NULL) : made(way, SYS_epoll_pwait, set, events, 1, 30000, 0, 8);
        break;
    case AIO:
        ready = by_name ? poll(&one, 1, 30000) : aio_poll(way, fd, &patience);
        break;
    default:
        ready = by_name ? epoll_pwait2(set, &event, 1, &patience, NULL) : made(way, SYS_epoll_pwait2, set, events, 1, time, 0, 8);
    }
    if (ready < 0) die(calls[guest->call]);
    expect(ready == 1, "something comes in time");
    if (has_set(guest->call) && (way != RAW || who == ONE)) expect(event.data.u64 == NAME, "the set tells what was put there");
}

/* Echoes what there is. Says whether the stream goes on. */
static int echo_some(struct guest *guest, int flags) {
    static _Thread_local char bytes[4096];
    pthread_mutex_lock(&guest->lock);
    ssize_t got = recv(guest->fd, bytes, sizeof bytes, flags);
    if (got > 0) send_all(guest->fd, bytes, got);
    pthread_mutex_unlock(&guest->lock);
    if (got < 0 && errno != EAGAIN) die("recv");
    return got != 0;
}

static void *by_libc(void *guest) {
    do wait_for(guest, LIBC, MIXED);
    while (echo_some(guest, MSG_DONTWAIT));
    return NULL;
}

static void serve(struct guest *guest, enum way way, enum who who) {
    pthread_t other;
    int round = 0;
    if (who == MIXED && pthread_create(&other, NULL, by_libc, guest)) die("pthread_create");
    do wait_for(guest, who == LATER && round++ < guest->rounds / 2 ? LIBC : way, who);
    while (echo_some(guest, who == MIXED ? MSG_DONTWAIT : 0));
    if (who == MIXED) pthread_join(other, NULL);
}

static void server(int port, int count, int whos, int rounds, enum way way) {
    int listener = listen_on(port);
    for (int at = 0; at < count * 2 * whos; at++) {
        struct guest guest = {accept_one(listener), epoll_create1(EPOLL_CLOEXEC), rounds, at / whos / 2, PTHREAD_MUTEX_INITIALIZER};
        struct epoll_event event = {EPOLLIN, {.u64 = NAME}};
        if (at / whos % 2 && fcntl(guest.fd, F_SETFL, O_NONBLOCK)) die("F_SETFL");
        if (has_set(guest.call) && epoll_ctl(guest.set, EPOLL_CTL_ADD, guest.fd, &event)) die("EPOLL_CTL_ADD");
        serve(&guest, way, at % whos);
        close(guest.fd);
        close(guest.set);
    }
    say("served");
}

static void client(int port, int count, int whos, int rounds) {
    unsigned char message[256], back[256];
    for (int at = 0; at < count * 2 * whos; at++) {
        uint64_t seed = at;
        int fd = connect_to(port);
        for (int round = 0; round < rounds; round++) {
            rng_fill(&seed, message, sizeof message);
            send_all(fd, message, sizeof message);
            recv_all(fd, back, sizeof back);
            expect(!memcmp(message, back, sizeof back), "the echo is what was sent");
        }
        close(fd);
        say("%s, %s, %s", calls[at / whos / 2], at / whos % 2 ? "non-blocking" : "blocking", names[at % whos]);
    }
}

int main(int argc, char **argv) {
    static const char *const ways[] = {"raw", "syscall", "libc"};
    expect(argc == 6 || argc == 7, "usage: server PORT CALLS WHOS ROUNDS WAY, or client PORT CALLS WHOS ROUNDS");
    int port = atoi(argv[2]), count = atoi(argv[3]), whos = atoi(argv[4]), rounds = atoi(argv[5]);
    if (argc == 6) client(port, count, whos, rounds);
    for (int way = RAW; argc == 7 && way <= LIBC; way++)
        if (!strcmp(argv[6], ways[way])) server(port, count, whos, rounds, way);
    return 0;
}
