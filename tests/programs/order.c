/* Bytes on several connections, one after the other, while nobody waits for them: a set tells of them in that order.
 *   order PORT      both ends of each connection are here */
#include "bed.h"
#include <sys/epoll.h>

enum { MANY = 8, ROUNDS = 50 };

static int set, from[MANY], to[MANY];

static void exchange(int i) {
    char message[64] = {0};
    send_all(from[i], message, sizeof message);
    recv_all(to[i], message, sizeof message);
    send_all(to[i], message, sizeof message);
    recv_all(from[i], message, sizeof message);
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
    say("%d rounds", ROUNDS);
    return 0;
}
