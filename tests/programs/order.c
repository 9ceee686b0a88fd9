/* Bytes on several connections, one after the other, while nobody waits for them: a set tells of them in that order. So it does where
 * the first one is new, and on TCP, and the set has just been looked at.
 *   order PORT      both ends of each connection are here */
#include "bed.h"
#include <sys/epoll.h>

enum { MANY = 8, ROUNDS = 50 };

static int set, from[MANY], to[MANY];

static int next(void) {
    struct epoll_event event;
    expect(epoll_wait(set, &event, 1, 1000) == 1, "one is told of");
    return event.data.u32;
}

static void exchange(int i) {
    char message[64] = {0};
    struct pollfd back = {from[i], POLLIN, 0};
    send_all(from[i], message, sizeof message);
    expect(next() == i, "the right one is told of");
    recv_all(to[i], message, sizeof message);
    send_all(to[i], message, sizeof message);
    expect(poll(&back, 1, 1000) == 1, "it comes back");
    recv_all(from[i], message, sizeof message);
}

static void send_one(int fd, int read_by, int number) {
    char byte = 0;
    send_all(fd, &byte, 1);
    expect(next() == number, "it is told of");
    recv_all(read_by, &byte, 1);
}

/* A connection too young for a lane; then one that has had time for it. */
static void new_before_old(int port, int listener, int old) {
    int young = connect_to(port), accepted = accept_one(listener);
    struct epoll_event event = {EPOLLIN, {.u32 = MANY}}, events[2];
    char byte = 0;
    if (epoll_ctl(set, EPOLL_CTL_ADD, accepted, &event)) die("epoll_ctl");
    send_one(young, accepted, MANY);
    send_one(from[old], to[old], old);
    expect(epoll_wait(set, events, 2, 0) == 0, "nothing is there");
    send_all(young, &byte, 1);
    send_all(from[old], &byte, 1);
    int told = epoll_wait(set, events, 2, 1000);
    expect(told >= 1 && events[0].data.u32 == MANY, "the young one is told of first");
    recv_all(accepted, &byte, 1);
    if (told < 2) expect(next() == old, "the old one is told of");
    recv_all(to[old], &byte, 1);
    close(young), close(accepted);
}

int main(int argc, char **argv) {
    expect(argc == 2, "usage: PORT");
    int port = atoi(argv[1]), listener = listen_on(port), order[MANY];
    uint64_t seed = 11;
    if ((set = epoll_create1(EPOLL_CLOEXEC)) < 0) die("epoll_create1");
    for (int i = 0; i < MANY; i++) {
        from[i] = connect_to(port), to[i] = accept_one(listener);
        struct epoll_event event = {EPOLLIN, {.u32 = i}};
        if (epoll_ctl(set, EPOLL_CTL_ADD, to[i], &event)) die("epoll_ctl");
        order[i] = i;
    }
    int64_t began = now_ms();
    for (int round = 0; !is_warm(round, began); round++) {
        for (int i = 0; i < MANY; i++) exchange(i);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct epoll_event events[MANY + 1];
        char byte = 0;
        expect(epoll_wait(set, events, MANY + 1, 5) == 0, "nothing is there");
        for (int i = MANY - 1; i > 0; i--) {
            int other = rng_next(&seed) % (i + 1), one = order[i];
            order[i] = order[other], order[other] = one;
        }
        for (int i = 0; i < MANY; i++) send_all(from[order[i]], &byte, 1);
        expect(epoll_wait(set, events, MANY + 1, 1000) == MANY, "all are told of");
        for (int i = 0; i < MANY; i++) {
            expect((int)events[i].data.u32 == order[i], "in the order of arrival");
            recv_all(to[order[i]], &byte, 1);
        }
    }
    for (int round = 0; round < ROUNDS; round++) new_before_old(port, listener, round % MANY);
    say("%d rounds", ROUNDS);
    return 0;
}
