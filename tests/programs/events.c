/* What an edge-triggered set tells of a connection, event for event, as runtimes that keep account of edges see it (mio's tests).
 *   events server|client PORT CLIENTS ROUNDS */
#include "bed.h"
#include <sys/epoll.h>

#define ALL (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)

static char data[4096];

static const char *names(uint32_t events) {
    static char text[64];
    snprintf(text, sizeof text, "%s%s%s%s%s", events & EPOLLIN ? " IN" : "", events & EPOLLOUT ? " OUT" : "",
             events & EPOLLRDHUP ? " RDHUP" : "", events & EPOLLHUP ? " HUP" : "", events & EPOLLERR ? " ERR" : "");
    return text;
}

static int watched(int fd) {
    struct epoll_event event = {ALL, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    return set;
}

/* The next event, or that there is none. */
static void say_next(const char *when, int set, int ms) {
    struct epoll_event events[16];
    int count = epoll_wait(set, events, 16, ms);
    for (int i = 0; i < count; i++) say("%s:%s", when, names(events[i].events));
    if (count == 0) say("%s: nothing", when);
    expect(count >= 0, "epoll_wait");
}

static void say_nothing(const char *when, int set) {
    say_next(when, set, 0);
    say_next(when, set, 5);
}

/* Message by message, through the lane's beginning and its end, and the end of what the peer writes: mio's write_shutdown. */
static void dialogue(int fd, int rounds) {
    fcntl(fd, F_SETFL, O_NONBLOCK);
    int set = watched(fd);
    say_next("registered", set, 1000);
    say_nothing("at first", set);
    for (int round = 0; round < rounds; round++) {
        send_all(fd, data, 100);
        say_next("answer", set, 10000);
        say("read %s", outcome(recv(fd, data, sizeof data, 0)));
        say_next("read", set, 0);
    }
    say_nothing("idle", set);
    data[0] = 'e';
    send_all(fd, data, 100);
    data[0] = 0;
    say_next("closed", set, 10000);
    say("read %s", outcome(recv(fd, data, sizeof data, 0)));
    say_nothing("ended", set);
    close(set);
}

static void serve(int port, int clients) {
    int listener = listen_on(port);
    for (int client = 0; client < clients; client++) echo_to_the_end(accept_one(listener));
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|client PORT CLIENTS ROUNDS");
    int port = atoi(argv[2]), clients = atoi(argv[3]), rounds = atoi(argv[4]);
    if (!strcmp(argv[1], "server")) serve(port, clients);
    else
        for (int client = 0; client < clients; client++) {
            int fd = connect_to(port);
            dialogue(fd, rounds);
            close(fd);
        }
    say("done");
    return 0;
}
