/* What an edge-triggered set tells of a connection, event for event, for each way to register it, and where a lane opens before, at and
 * after that.
 *   edges server|client PORT ROUNDS TIMES      each way so often; the server and the client are looked at by turns, the other one echoes
 * Where a look comes late, as an event stands already, it does so on TCP: nothing that is printed depends on time. */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define BASE (EPOLLIN | EPOLLOUT | EPOLLET)

struct shape {
    const char *name;
    uint32_t events;
    int at; /* round in which it is registered */
    /* The set tells of all; of nothing before the first read, or before any; of bytes that are left unread for a while. */
    enum { TOLD, UNTOLD, READ_FIRST, LEFT } order;
    /* What happens to the registration in each third round; a one-shot is armed again in each. */
    enum { NOTHING, MODS, READDS, SWITCHES, REARMS } change;
    int others; /* the set has another descriptor, of which there is always something to tell */
};

static const struct shape shapes[] = {
    {"at 0", BASE, 0, TOLD, NOTHING, 0},
    {"at 4", BASE, 4, TOLD, NOTHING, 0},
    {"at 7", BASE, 7, TOLD, NOTHING, 0},
    {"at 9", BASE, 9, TOLD, NOTHING, 0},
    {"at 12", BASE, 12, TOLD, NOTHING, 0},
    {"at 16", BASE, 16, TOLD, NOTHING, 0},
    {"untold", BASE, 0, UNTOLD, NOTHING, 0},
    {"untold, at 8", BASE, 8, UNTOLD, NOTHING, 0},
    {"read first", BASE, 0, READ_FIRST, NOTHING, 0},
    {"read first, at 9", BASE, 9, READ_FIRST, NOTHING, 0},
    {"left", BASE, 0, LEFT, NOTHING, 0},
    {"left, others", BASE, 0, LEFT, NOTHING, 1},
    {"others", BASE, 0, TOLD, NOTHING, 1},
    {"others, untold", BASE, 0, UNTOLD, NOTHING, 1},
    {"in", EPOLLIN | EPOLLET, 0, TOLD, NOTHING, 0},
    {"out", EPOLLOUT | EPOLLET, 0, TOLD, NOTHING, 0},
    {"out, at 8", EPOLLOUT | EPOLLET, 8, TOLD, NOTHING, 0},
    {"out, others", EPOLLOUT | EPOLLET, 0, TOLD, NOTHING, 1},
    {"rdhup", BASE | EPOLLRDHUP, 0, TOLD, NOTHING, 0},
    {"mods", BASE, 0, TOLD, MODS, 0},
    {"mods, others", BASE, 0, TOLD, MODS, 1},
    {"mods, untold", BASE, 0, UNTOLD, MODS, 0},
    {"readds", BASE, 0, TOLD, READDS, 0},
    {"switches", BASE, 0, TOLD, SWITCHES, 0},
    {"oneshot", BASE | EPOLLONESHOT, 0, TOLD, REARMS, 0},
    {"oneshot, left", BASE | EPOLLONESHOT, 0, LEFT, REARMS, 0},
    {"oneshot, others", BASE | EPOLLONESHOT, 0, TOLD, REARMS, 1},
    {"oneshot, at 8", BASE | EPOLLONESHOT, 8, TOLD, REARMS, 0},
    {"oneshot, out", EPOLLOUT | EPOLLET | EPOLLONESHOT, 0, TOLD, REARMS, 0},
    {"exclusive", BASE | EPOLLEXCLUSIVE, 0, TOLD, NOTHING, 0},
    {"exclusive, at 9", BASE | EPOLLEXCLUSIVE, 9, TOLD, NOTHING, 0},
    {"exclusive, left", BASE | EPOLLEXCLUSIVE, 0, LEFT, NOTHING, 0},
};

static char data[4096];
static const struct shape *shape;
static int set, other; /* of the connection that is looked at */

static const char *names(uint32_t events) {
    static char text[64];
    snprintf(text, sizeof text, "%s%s%s%s%s", events & EPOLLIN ? " IN" : "", events & EPOLLOUT ? " OUT" : "",
             events & EPOLLRDHUP ? " RDHUP" : "", events & EPOLLHUP ? " HUP" : "", events & EPOLLERR ? " ERR" : "");
    return text;
}

/* The next events of the connection, if there are any within `ms`. */
static void say_next(const char *when, int ms) {
    int64_t end = now_ms() + ms;
    int told = 0;
    do {
        struct epoll_event events[16];
        int count = epoll_wait(set, events, 16, shape->others ? 0 : ms);
        expect(count >= 0, "epoll_wait");
        for (int i = 0; i < count; i++)
            if (events[i].data.fd != other) printf(" %s:%s", when, names(events[i].events)), told++;
    } while (!told && now_ms() < end);
}

static void control(int op, int fd, uint32_t events) {
    struct epoll_event event = {events, {.fd = fd}};
    if (epoll_ctl(set, op, fd, &event)) die("epoll_ctl");
}

static void answered(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    expect(poll(&one, 1, 10000) == 1, "the answer comes");
}

static void change(int fd) {
    switch (shape->change) {
    case MODS:
        return control(EPOLL_CTL_MOD, fd, shape->events);
    case READDS:
        control(EPOLL_CTL_DEL, fd, 0);
        return control(EPOLL_CTL_ADD, fd, shape->events);
    case SWITCHES:
        control(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
        return control(EPOLL_CTL_MOD, fd, shape->events);
    default:
        return;
    }
}

/* One round of a connection that is registered. */
static void watched(int fd, int round) {
    int has_in = shape->events & EPOLLIN;
    if (shape->change == REARMS) {
        control(EPOLL_CTL_MOD, fd, shape->events);
        say_next("armed", 0);
        control(EPOLL_CTL_MOD, fd, EPOLLIN | (shape->events & ~EPOLLOUT));
    } else if (shape->change != NOTHING && round % 3 == 2) {
        change(fd);
        if (shape->order == TOLD) say_next("changed", 0);
    }
    send_all(fd, data, 100);
    if (!has_in || shape->order == READ_FIRST || shape->order == UNTOLD) answered(fd);
    if (shape->order != READ_FIRST) say_next("answer", has_in ? 10000 : 0);
    if (shape->order == LEFT) say_next("left", 0);
    if (shape->order == LEFT) say_next("left", 1);
    printf(" read %s", outcome(recv(fd, data, sizeof data, 0)));
    say_next("after", 0);
    if (round % 4 == 3) say_next("later", 2);
}

static void dialogue(int fd, int rounds) {
    printf("# %s\n", shape->name);
    data[0] = 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    set = epoll_create1(EPOLL_CLOEXEC), other = eventfd(1, EFD_CLOEXEC);
    if (shape->others) control(EPOLL_CTL_ADD, other, EPOLLIN);
    for (int round = 0; round < rounds; round++) {
        printf("%d:", round);
        if (round == shape->at) {
            control(EPOLL_CTL_ADD, fd, shape->events);
            if (shape->order != UNTOLD) say_next("registered", 0);
        }
        if (round >= shape->at) {
            watched(fd, round);
        } else {
            send_all(fd, data, 100);
            answered(fd);
            printf(" read %s", outcome(recv(fd, data, sizeof data, 0)));
        }
        printf("\n");
    }
    say_next("idle", 10);
    printf("\n");
    if (shape->change == REARMS) control(EPOLL_CTL_MOD, fd, shape->events & ~EPOLLOUT);
    /* What the peer writes ends, of which the kernel tells each entry, whatever it asks for. */
    data[0] = 'e';
    send_all(fd, data, 100);
    data[0] = 0;
    expect(poll(&(struct pollfd){fd, POLLRDHUP, 0}, 1, 10000) == 1, "the end comes");
    say_next("ended", 0);
    say_next("ended", 2);
    printf(" read %s", outcome(recv(fd, data, sizeof data, 0)));
    say_next("read", 2);
    printf("\n");
    close(fd);
    close(set);
    close(other);
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|client PORT ROUNDS TIMES");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[2]), rounds = atoi(argv[3]), times = atoi(argv[4]);
    int listener = is_server ? listen_on(port) : -1;
    for (shape = shapes; shape < shapes + sizeof shapes / sizeof *shapes; shape++)
        for (int time = 0; time < times; time++) {
            int fd = is_server ? accept_one(listener) : connect_to(port);
            if (is_server == time % 2) dialogue(fd, rounds);
            else echo_to_the_end(fd);
        }
    return 0;
}
