/* A thread that sleeps in epoll_wait before the set has a lane. It leaves: it is cancelled, or its handler jumps away, and others wait for
 * the set as before. Or it stays, and nothing but the lane's first bytes for it wakes it, long after the lane has opened.
 *   leaves server PORT HOW       HOW: cancel, jump, stays
 *   leaves client PORT ROUNDS    one message each 4 ms */
#include "bed.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>

static int set, guest;
static sigjmp_buf away;
static atomic_int is_over, is_quiet;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void jump(int signal) {
    (void)signal;
    siglongjmp(away, 1);
}

static void *sleeps(void *none) {
    struct epoll_event event;
    if (!sigsetjmp(away, 1)) epoll_wait(set, &event, 1, -1);
    return none;
}

static void *serves(void *none) {
    char bytes[1024];
    struct epoll_event events[4];
    while (!is_over) {
        int n = epoll_wait(set, events, 4, -1);
        if (n < 0) die("epoll_wait");
        expect(n == 1 && events[0].data.fd == guest, "the connection is told of");
        pthread_mutex_lock(&lock);
        ssize_t got = recv(guest, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN) die("recv");
        if (got == 0) is_over = 1;
        if (got > 0 && bytes[0] == 'q') is_quiet = 1;
        else if (got > 0) send_all(guest, bytes, got);
        pthread_mutex_unlock(&lock);
    }
    return none;
}

static int64_t cpu_ms(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000LL + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

static void wait_for(uint32_t events, int op) {
    struct epoll_event event = {events, {.fd = guest}};
    if (epoll_ctl(set, op, guest, &event)) die("epoll_ctl");
}

static void is_ready(void) {
    char go = 'g';
    usleep(100000);
    send_all(guest, &go, 1);
}

static void leave(const char *how) {
    pthread_t sleeper, servers[2];
    wait_for(EPOLLIN, EPOLL_CTL_ADD);
    if (pthread_create(&sleeper, NULL, sleeps, NULL)) die("pthread_create");
    usleep(100000);
    if (!strcmp(how, "cancel")) pthread_cancel(sleeper);
    else pthread_kill(sleeper, SIGUSR1);
    pthread_join(sleeper, NULL);
    for (int at = 0; at < 2; at++)
        if (pthread_create(&servers[at], NULL, serves, NULL)) die("pthread_create");
    is_ready();
    while (!is_quiet) usleep(1000);
    /* That a thread has left may be found out by looking for it over and over, for a moment. */
    usleep(500000);
    int64_t before = cpu_ms();
    usleep(400000);
    expect(cpu_ms() - before < 200, "threads that wait for nothing cost no CPU time");
    send_all(guest, "q", 1);
    for (int at = 0; at < 2; at++) pthread_join(servers[at], NULL);
}

static void stay(void) {
    pthread_t sleeper;
    char bytes[64];
    wait_for(EPOLLRDHUP, EPOLL_CTL_ADD);
    if (pthread_create(&sleeper, NULL, serves, NULL)) die("pthread_create");
    is_ready();
    for (;;) {
        struct pollfd one = {guest, POLLIN, 0};
        if (poll(&one, 1, -1) != 1) die("poll");
        ssize_t got = recv(guest, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) die("recv");
        if (bytes[0] == 'q') break;
        send_all(guest, bytes, got);
    }
    wait_for(EPOLLIN, EPOLL_CTL_MOD);
    send_all(guest, "q", 1);
    pthread_join(sleeper, NULL);
}

static void server(int port, const char *how) {
    int listener = listen_on(port);
    struct sigaction action = {.sa_handler = jump};
    sigaction(SIGUSR1, &action, NULL);
    set = epoll_create1(EPOLL_CLOEXEC);
    guest = accept_one(listener);
    if (!strcmp(how, "stays")) stay();
    else leave(how);
    say("served");
}

static void client(int port, int rounds) {
    int fd = connect_to(port);
    unsigned char message[64], back[64];
    recv_all(fd, back, 1);
    uint64_t seed = 1;
    for (int round = 0; round <= rounds + 1; round++) {
        size_t count = round == rounds ? 1 : sizeof message;
        rng_fill(&seed, message, sizeof message);
        message[0] = round == rounds ? 'q' : 'm';
        send_all(fd, message, count);
        recv_all(fd, back, count);
        expect(!memcmp(message, back, count), "the echo is what was sent");
        usleep(4000);
    }
    close(fd);
    say("echoed");
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server PORT HOW, or client PORT ROUNDS");
    if (!strcmp(argv[1], "server")) server(atoi(argv[2]), argv[3]);
    else client(atoi(argv[2]), atoi(argv[3]));
    return 0;
}
