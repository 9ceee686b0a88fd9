/* Requests on several connections by several threads, each with an epoll set of its own: which memory do they share?
 *   lines PORT THREADS CONNECTIONS ROUNDS
 *
 * Both ends of a connection are the same thread's, so that no request waits; each arms its connection anew (EPOLLONESHOT,
 * EPOLL_CTL_MOD). The first two threads have their rounds one after the other, between stores to MARKS that a trace of all
 * accesses shows: byte 0 the first begins requests, 1 it ends, 2 and 3 the second; 4 to 7 the same of a sleep in vain. */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#define MARKS ((volatile char *)0x7a0000000000)
#define QUIET 40
enum { THREADS = 8, CONNECTIONS = 64, SIZE = 14 };

static int threads, connections, rounds, turn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static struct own {
    _Alignas(4096) int set, number, from[CONNECTIONS], to[CONNECTIONS];
    char message[64];
} owners[THREADS];

static void requests(struct own *own) {
    struct epoll_event events[CONNECTIONS];
    for (int i = 0; i < connections; i++) expect(send(own->from[i], own->message, SIZE, 0) == SIZE, "sent");
    for (int done = 0; done < connections;) {
        int ready = epoll_wait(own->set, events, CONNECTIONS, -1);
        for (int i = 0; i < ready; i++) {
            char answer[SIZE];
            struct epoll_event again = {EPOLLIN | EPOLLONESHOT, events[i].data};
            expect(recv(events[i].data.fd, answer, SIZE, 0) == SIZE, "received");
            if (epoll_ctl(own->set, EPOLL_CTL_MOD, events[i].data.fd, &again)) die("EPOLL_CTL_MOD");
        }
        done += ready;
    }
}

static void sleep_in_vain(struct own *own) {
    struct epoll_event event;
    expect(epoll_wait(own->set, &event, 1, 20) == 0, "nothing comes");
}

/* Looks in vain: the connections are armed, so that what is sent is posted to the thread's queue. */
static void rest(struct own *own) {
    struct epoll_event event;
    for (int look = 0; look < QUIET; look++) expect(epoll_wait(own->set, &event, 1, 0) == 0, "nothing there");
}

static void *thread(void *argument) {
    struct own *own = argument;
    pthread_mutex_lock(&lock);
    while (turn != own->number) pthread_cond_wait(&turned, &lock);
    pthread_mutex_unlock(&lock);
    rest(own);
    requests(own);
    sleep_in_vain(own);
    for (int round = 0; round < rounds && own->number < 2; round++) {
        rest(own);
        MARKS[2 * own->number] = 1;
        requests(own);
        MARKS[2 * own->number + 1] = 1;
        rest(own);
        MARKS[2 * own->number + 4] = 1;
        sleep_in_vain(own);
        MARKS[2 * own->number + 5] = 1;
    }
    pthread_mutex_lock(&lock);
    turn++;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: PORT THREADS CONNECTIONS ROUNDS");
    threads = atoi(argv[2]), connections = atoi(argv[3]), rounds = atoi(argv[4]);
    int port = atoi(argv[1]), listener = listen_on(port);
    void *at = mmap((void *)MARKS, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != MARKS) die("mmap");
    for (int t = 0; t < threads; t++) {
        owners[t].number = t, owners[t].set = epoll_create1(EPOLL_CLOEXEC);
        for (int i = 0; i < connections; i++) {
            owners[t].from[i] = connect_to(port), owners[t].to[i] = accept_one(listener);
            struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.fd = owners[t].to[i]}};
            if (epoll_ctl(owners[t].set, EPOLL_CTL_ADD, owners[t].to[i], &event)) die("epoll_ctl");
        }
    }
    for (int after = 0; after < 4; after += is_warm(0, 0)) {
        for (int t = 0; t < threads; t++)
            for (int i = 0; i < connections; i++) {
                /* Both ends wait as programs do: a connection of which no wait is seen gets no lane. */
                struct epoll_event event, again = {EPOLLIN | EPOLLONESHOT, {.fd = owners[t].to[i]}};
                struct pollfd answer = {.fd = owners[t].from[i], .events = POLLIN};
                send_all(owners[t].from[i], owners[t].message, SIZE);
                expect(epoll_wait(owners[t].set, &event, 1, -1) == 1, "it comes");
                recv_all(owners[t].to[i], owners[t].message, SIZE);
                if (epoll_ctl(owners[t].set, EPOLL_CTL_MOD, owners[t].to[i], &again)) die("EPOLL_CTL_MOD");
                send_all(owners[t].to[i], owners[t].message, SIZE);
                expect(poll(&answer, 1, -1) == 1, "the answer comes");
                recv_all(owners[t].from[i], owners[t].message, SIZE);
            }
        struct timespec pause = {.tv_nsec = 10000000};
        nanosleep(&pause, NULL);
    }
    pthread_t running[THREADS];
    for (int t = 0; t < threads; t++) pthread_create(&running[t], NULL, thread, &owners[t]);
    for (int t = 0; t < threads; t++) pthread_join(running[t], NULL);
    say("done");
    return 0;
}
