/* A server as Apache's event module is: one thread waits and takes out of its set what it is told of, others serve that and put
 * it back. A connection that is told of twice would be served by two.
 *   removes server PORT COUNT [PAUSE]      until so many connections have ended; a worker reads after so many microseconds
 *   removes client PORT THREADS EXCHANGES COUNT */
#include "bed.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>

enum { MOST = 4096, WORKERS = 3, SIZE = 64, BATCH = 64 };
enum { NOBODYS, AWAITED, SERVED };

static int set, jobs[2], port, exchanges, count, pause_us;
static atomic_int states[MOST], ended;

static void put(int fd, int op) {
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    if (epoll_ctl(set, op, fd, &event)) die("epoll_ctl");
}

static void *serve(void *nothing) {
    for (;;) {
        char request[SIZE];
        int fd;
        if (read(jobs[0], &fd, sizeof fd) != sizeof fd) die("read of a job");
        if (pause_us) usleep(pause_us);
        ssize_t got = recv(fd, request, SIZE, 0);
        if (got < 0) die("recv");
        if (got == 0) {
            states[fd] = NOBODYS;
            close(fd);
            if (++ended == count) {
                say("done");
                exit(0);
            }
            continue;
        }
        send_all(fd, request, got);
        states[fd] = AWAITED;
        put(fd, EPOLL_CTL_ADD);
    }
    return nothing;
}

static void server(void) {
    struct epoll_event events[BATCH];
    int listener = listen_on(port);
    pthread_t thread;
    if ((set = epoll_create1(EPOLL_CLOEXEC)) < 0 || pipe(jobs)) die("a set and a pipe");
    put(listener, EPOLL_CTL_ADD);
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&thread, NULL, serve, NULL)) die("pthread_create");
    for (;;) {
        int ready = epoll_wait(set, events, BATCH, -1);
        if (ready < 0) die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd, awaited = AWAITED;
            if (fd == listener) {
                fd = accept_one(listener);
                expect(fd < MOST, "few descriptors");
                states[fd] = AWAITED;
                put(fd, EPOLL_CTL_ADD);
                continue;
            }
            if (!atomic_compare_exchange_strong(&states[fd], &awaited, SERVED)) {
                int first = 0;
                while (events[first].data.fd != fd) first++;
                fprintf(stderr, "%d is in state %d; told of %#x, number %d of %d; first as number %d\n", fd, awaited,
                        events[i].events, i, ready, first);
                expect(0, "nobody serves what the set tells of");
            }
            put(fd, EPOLL_CTL_DEL);
            if (write(jobs[1], &fd, sizeof fd) != sizeof fd) die("write of a job");
        }
    }
}

static void *ask(void *nothing) {
    char out[SIZE], in[SIZE];
    for (int i = 0; i < count; i++) {
        int fd = connect_to(port);
        for (int exchange = 0; exchange < exchanges; exchange++) {
            memset(out, exchange, SIZE);
            send_all(fd, out, SIZE);
            recv_all(fd, in, SIZE);
            expect(!memcmp(out, in, SIZE), "the answer is this one's");
        }
        close(fd);
    }
    return nothing;
}

int main(int argc, char **argv) {
    pthread_t threads[64];
    expect(argc > 3, "usage: server PORT COUNT [PAUSE] | client PORT THREADS EXCHANGES COUNT");
    port = atoi(argv[2]);
    if (!strcmp(argv[1], "server")) {
        count = atoi(argv[3]), pause_us = argc > 4 ? atoi(argv[4]) : 0;
        server();
    }
    expect(argc == 6, "as many arguments as a client has");
    count = atoi(argv[5]), exchanges = atoi(argv[4]);
    int many = atoi(argv[3]);
    expect(many > 0 && many <= 64, "1 to 64 threads");
    for (int i = 0; i < many; i++)
        if (pthread_create(&threads[i], NULL, ask, NULL)) die("pthread_create");
    for (int i = 0; i < many; i++) pthread_join(threads[i], NULL);
    say("done");
    return 0;
}
