/* Calls whose instructions are counted: callgrind collects inside of `measured` only.
 *   instructions PORT WHAT ROUNDS
 * WHAT: exchange (send, recv), sends (send, send, recv of both), waits (send, epoll_wait, recv), polls (send, poll, recv): both ends
 * of a connection in one thread, so that nothing ever waits; file (read, write); connection (both ends of one for a byte there and back). */
#include "bed.h"
#include <poll.h>
#include <sys/epoll.h>

static char message[28] = "counted bytes";
static const size_t size = 14;

void measured(const char *what, long rounds, int from, int to, int set);
void connection(int port, int listener);

void connection(int port, int listener) {
    char byte = 'b';
    int from = connect_to(port), to = accept_one(listener);
    if (send(from, &byte, 1, 0) != 1 || recv(to, &byte, 1, 0) != 1) die("there");
    if (send(to, &byte, 1, 0) != 1 || recv(from, &byte, 1, 0) != 1) die("and back");
    close(from);
    close(to);
}

__attribute__((noinline)) void measured(const char *what, long rounds, int from, int to, int set) {
    int sends = !strcmp(what, "sends"), waits = !strcmp(what, "waits"), polls = !strcmp(what, "polls");
    struct epoll_event event;
    struct pollfd readable = {to, POLLIN, 0};
    if (!strcmp(what, "file")) {
        for (; rounds > 0; rounds--)
            if (read(from, message, 1) != 1 || write(to, message, 1) != 1) die("read and write of a file");
        return;
    }
    if (!strcmp(what, "connection")) {
        for (; rounds > 0; rounds--) connection(from, to);
        return;
    }
    for (; rounds > 0; rounds--) {
        if (send(from, message, size, 0) != (ssize_t)size) die("send");
        if (sends && send(from, message, size, 0) != (ssize_t)size) die("send");
        if (waits && epoll_wait(set, &event, 1, -1) != 1) die("epoll_wait");
        if (polls && poll(&readable, 1, -1) != 1) die("poll");
        ssize_t all = sends ? 2 * size : size;
        if (recv(to, message, sizeof message, 0) != all) die("recv");
    }
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: PORT WHAT ROUNDS");
    const char *what = argv[2];
    long rounds = atol(argv[3]);
    if (!strcmp(what, "file")) {
        int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
        measured(what, rounds, zero, null, -1);
        say("done");
        return 0;
    }
    int port = atoi(argv[1]), listener = listen_on(port);
    if (!strcmp(what, "connection")) {
        connection(port, listener);
        measured(what, rounds, port, listener, -1);
        say("done");
        return 0;
    }
    int from = connect_to(port), to = accept_one(listener);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.u32 = 0}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, to, &event)) die("epoll_ctl");
    /* Both directions have traffic, which is waited for, until the lanes are there, and a little longer. */
    struct pollfd back = {from, POLLIN, 0};
    for (int after = 0; after < 50; after += is_warm(0, 0)) {
        send_all(from, message, size);
        if (epoll_wait(set, &event, 1, -1) != 1) die("epoll_wait");
        recv_all(to, message, size);
        send_all(to, message, size);
        if (poll(&back, 1, -1) != 1) die("poll");
        recv_all(from, message, size);
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    measured(what, rounds, from, to, set);
    say("done");
    return 0;
}
