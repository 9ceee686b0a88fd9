/* A set that becomes part of another one after its connection was nominated, and before that has a lane: who waits for the outer
 * set is told of it all the same. Both ends in one process.
 *   nested PORT */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>

enum { MANY = 16 };

static int near, far;
static char data[MANY];

static void *send_later(void *nothing) {
    usleep(100000);
    send_all(far, data, 1);
    return nothing;
}

static int set_of(int fd) {
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("a set");
    return set;
}

int main(int argc, char **argv) {
    expect(argc == 2, "usage: PORT");
    int port = atoi(argv[1]), listener = listen_on(port);
    near = connect_to(port), far = accept_one(listener);
    int inner = set_of(near);
    /* Many calls at the near end, which is nominated for them, and few at the far one. */
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < MANY; i++) send_all(near, data, 1);
        recv_all(far, data, MANY);
        send_all(far, data, MANY);
        for (int i = 0; i < MANY; i++) recv_all(near, data, 1);
        usleep(20000);
    }
    int outer = set_of(inner);
    /* The far end follows. */
    for (int64_t begin = now_ms(); now_ms() < begin + 300;) {
        send_all(near, data, 1), recv_all(far, data, 1);
        send_all(far, data, 1), recv_all(near, data, 1);
    }
    pthread_t sender;
    struct epoll_event event;
    if (pthread_create(&sender, NULL, send_later, NULL)) die("pthread_create");
    int count, told;
    do {
        count = epoll_wait(outer, &event, 1, 5000);
        told = epoll_wait(inner, &event, 1, 0);
    } while (count == 1 && told == 0);
    say("outer %d, inner %d", count, told);
    return 0;
}
