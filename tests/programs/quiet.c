/* A client whose set has been quiet sends, and sleeps in the set; who serves it has begun to wait past the hooks.
 *   quiet server|client PORT
 * A connection for each way to be in the set, with a server that has waited in a set of its own first, in vain, and with one that has not;
 * each has a lane by then, where it can have one. */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/timerfd.h>

static const unsigned ways[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLOUT | EPOLLET};
enum { WAYS = sizeof ways / sizeof *ways };

static void server(int port) {
    int listener = listen_on(port);
    for (int way = 0; way < 2 * WAYS; way++) {
        int fd = accept_one(listener), set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event connection = {EPOLLIN, {.u32 = 0}}, event;
        struct pollfd one = {fd, POLLIN, 0};
        char byte;
        warm_up_server(fd);
        if (way >= WAYS) {
            if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &connection)) die("EPOLL_CTL_ADD");
            expect(epoll_wait(set, &event, 1, 5) == 0, "nothing comes so soon");
        }
        expect(unseen_call(SYS_ppoll, (long)&one, 1, (long)&(struct timespec){20, 0}, 0) == 1, "what was sent comes in time");
        recv_all(fd, &byte, 1);
        send_all(fd, &byte, 1);
        recv_upto(fd, &byte, 1);
        close(fd), close(set);
    }
}

static void client(int port) {
    for (int way = 0; way < 2 * WAYS; way++) {
        int fd = connect_to(port), set = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
        struct epoll_event connection = {ways[way % WAYS], {.u32 = 0}}, clock = {EPOLLIN | EPOLLET, {.u32 = 1}}, event;
        struct itimerspec soon = {.it_value = {0, 100000000}};
        char byte = 'b';
        warm_up_client(fd);
        if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &connection) || epoll_ctl(set, EPOLL_CTL_ADD, timer, &clock)) die("EPOLL_CTL_ADD");
        timerfd_settime(timer, 0, &soon, NULL);
        do expect(epoll_wait(set, &event, 1, 20000) == 1, "the time comes");
        while (event.data.u32 == 0);
        send_all(fd, &byte, 1);
        do expect(epoll_wait(set, &event, 1, 20000) == 1, "the answer comes");
        while (!(event.events & EPOLLIN));
        recv_all(fd, &byte, 1);
        close(fd), close(set), close(timer);
        say("way %d", way);
    }
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    (strcmp(argv[1], "server") ? client : server)(atoi(argv[2]));
    return 0;
}
