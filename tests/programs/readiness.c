/* What poll, select and epoll report, call for call.
 *   readiness server|client CASE PORT */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/wait.h>

static char data[100000];

static const char *names(uint32_t events) {
    static const struct { uint32_t bit; const char *name; } table[] = {
        {EPOLLIN, "IN "}, {EPOLLPRI, "PRI "}, {EPOLLOUT, "OUT "}, {EPOLLERR, "ERR "}, {EPOLLHUP, "HUP "}, {EPOLLRDHUP, "RDHUP "}};
    static char text[64];
    text[0] = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (events & table[i].bit) strcat(text, table[i].name);
    return text;
}

#define EVERY (EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP)

/* The three views of one descriptor at one moment. */
static void say_state(const char *when, int fd) {
    struct pollfd entry = {fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0};
    int count = poll(&entry, 1, 0);
    say("%s: poll %d %s", when, count, names(entry.revents)); /* the POLL and EPOLL bits are the same */
    fd_set in, out, odd;
    struct timeval none = {0, 0};
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&odd);
    FD_SET(fd, &in), FD_SET(fd, &out), FD_SET(fd, &odd);
    count = select(fd + 1, &in, &out, &odd, &none);
    say("%s: select %d: %d %d %d", when, count, !!FD_ISSET(fd, &in), !!FD_ISSET(fd, &out), !!FD_ISSET(fd, &odd));
    struct epoll_event event = {EVERY, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    count = epoll_wait(set, &event, 1, 0);
    say("%s: epoll %d %s", when, count, count > 0 ? names(event.events) : "");
    close(set);
}

static void fill(int fd) {
    while (send(fd, data, sizeof data, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
    while (send(fd, data, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
}

static void drain_what_is_there(int fd) {
    while (recv(fd, data, sizeof data, MSG_DONTWAIT) > 0) {}
}

/* -- the states of a connection's life -- */
static void states_server(int fd) {
    await();
    send_all(fd, data, 100);
    tell(), await();
    drain_what_is_there(fd); /* the client has filled the connection */
    tell(), await();
    shutdown(fd, SHUT_WR);
    tell(), await();
    say_state("client gone too", fd);
    tell();
}

static void states_client(int fd) {
    say_state("idle", fd);
    tell(), await();
    say_state("bytes there", fd);
    recv_all(fd, data, 99);
    say_state("one left", fd);
    recv_all(fd, data, 1);
    say_state("all read", fd);
    fill(fd);
    say_state("full", fd);
    tell(), await();
    struct pollfd writable = {fd, POLLOUT, 0};
    say("writable again: %d", poll(&writable, 1, 10000));
    tell(), await();
    say_state("server's half closed", fd);
    shutdown(fd, SHUT_WR);
    struct pollfd hung = {fd, 0, 0};
    say("both halves: %d", poll(&hung, 1, 0) == 1 && hung.revents & POLLHUP);
    say_state("both halves closed", fd);
    tell(), await();
}

/* -- epoll, edge by edge: et, oneshot, a level set and an edge set on one connection -- */
static void edges_server(int fd) {
    for (int i = 0; i < 5; i++) {
        await();
        send_all(fd, data, 100);
        tell();
    }
    await();
}

static void say_wait(const char *what, int set) {
    struct epoll_event events[4];
    int count = epoll_wait(set, events, 4, 0);
    say("%s: %d %s", what, count, count > 0 ? names(events[0].events) : "");
}

static int set_with(int fd, uint32_t mask) {
    struct epoll_event event = {mask, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    return set;
}

static void edges_client(int fd) {
    int edge = set_with(fd, EPOLLIN | EPOLLET), level = set_with(fd, EPOLLIN), once = set_with(fd, EPOLLIN | EPOLLONESHOT);
    int both = set_with(fd, EPOLLIN | EPOLLOUT | EPOLLET), outer = set_with(level, EPOLLIN);
    say_wait("edge, nothing", edge), say_wait("level, nothing", level), say_wait("nested, nothing", outer);
    say_wait("in and out, first", both), say_wait("in and out, again", both);
    tell(), await();
    say_wait("edge", edge), say_wait("edge, unread", edge);
    say_wait("level", level), say_wait("level, unread", level), say_wait("nested", outer);
    say_wait("once", once), say_wait("once, spent", once);
    say_wait("in and out", both);
    recv_all(fd, data, 50);
    say_wait("edge, half read", edge), say_wait("level, half read", level);
    tell(), await();
    say_wait("edge, more came", edge), say_wait("once, still spent", once);
    recv_all(fd, data, 150);
    say_wait("edge, all read", edge), say_wait("level, all read", level), say_wait("nested, all read", outer);
    struct epoll_event event = {EPOLLIN | EPOLLONESHOT, {.fd = fd}};
    epoll_ctl(once, EPOLL_CTL_MOD, fd, &event);
    say_wait("once, armed on nothing", once);
    tell(), await();
    say_wait("once, armed", once);
    event.events = EPOLLIN | EPOLLET;
    epoll_ctl(edge, EPOLL_CTL_MOD, fd, &event);
    say_wait("edge, set anew on bytes", edge);
    int late = set_with(fd, EPOLLIN | EPOLLET);
    say_wait("late edge on bytes", late), say_wait("late edge again", late);
    epoll_ctl(level, EPOLL_CTL_DEL, fd, NULL);
    say_wait("level, taken out", level), say_wait("nested, taken out", outer);
    say("add twice: %s", outcome(epoll_ctl(edge, EPOLL_CTL_ADD, fd, &event)));
    say("modify the absent: %s", outcome(epoll_ctl(level, EPOLL_CTL_MOD, fd, &event)));
    recv_all(fd, data, 100);
    /* a wait that is already asleep when the bytes come */
    for (int i = 0; i < 2; i++) {
        tell();
        int count = epoll_wait(edge, &event, 1, 10000);
        say("woken: %d %s", count, names(event.events));
        recv_all(fd, data, 100);
        await();
    }
    tell();
}

/* -- a full connection: one EPOLLOUT edge when there is room again -- */
static void room_server(int fd) {
    for (int i = 0; i < 3; i++) {
        await();
        drain_what_is_there(fd);
        tell();
    }
    await();
}

static void room_client(int fd) {
    int edge = set_with(fd, EPOLLOUT | EPOLLET), level = set_with(fd, EPOLLOUT);
    struct epoll_event event;
    say_wait("edge at first", edge);
    for (int i = 0; i < 3; i++) {
        fill(fd);
        say_wait("level, full", level);
        say_wait("edge, full", edge);
        tell();
        say("edge, room: %d", epoll_wait(edge, &event, 1, 10000));
        say("level, room: %d", epoll_wait(level, &event, 1, 10000));
        await();
    }
    tell();
}

/* -- a set with the connection and other descriptors: each is reported, the wait wakes for either -- */
static void mixed_server(int fd) {
    for (int i = 0; i < 2; i++) {
        await();
        usleep(30000); /* the client sleeps by now, or soon */
        send_all(fd, data, 10);
    }
    await();
}

static void *ring_later(void *other) {
    usleep(30000);
    eventfd_write(*(int *)other, 1);
    return NULL;
}

static void mixed_client(int fd) {
    int other = eventfd(0, EFD_CLOEXEC), set = set_with(fd, EPOLLIN);
    struct epoll_event event = {EPOLLIN, {.fd = other}}, events[4];
    struct pollfd pair[2] = {{fd, POLLIN, 0}, {other, POLLIN, 0}};
    pthread_t ringer;
    eventfd_t value;
    epoll_ctl(set, EPOLL_CTL_ADD, other, &event);
    pthread_create(&ringer, NULL, ring_later, &other);
    int count = epoll_wait(set, events, 4, 10000);
    say("epoll, other: %d is other %d", count, events[0].data.fd == other);
    pthread_join(ringer, NULL), eventfd_read(other, &value);
    tell();
    count = epoll_wait(set, events, 4, 10000);
    say("epoll, connection: %d is connection %d", count, events[0].data.fd == fd);
    eventfd_write(other, 1);
    say("epoll, both: %d", epoll_wait(set, events, 4, 0));
    say("poll, both: %d", poll(pair, 2, 0));
    recv_all(fd, data, 10), eventfd_read(other, &value);
    say("poll, none: %d", poll(pair, 2, 0));
    pthread_create(&ringer, NULL, ring_later, &other);
    count = poll(pair, 2, 10000);
    say("poll, other: %d %d", count, pair[1].revents == POLLIN && !pair[0].revents);
    pthread_join(ringer, NULL), eventfd_read(other, &value);
    tell();
    count = poll(pair, 2, 10000);
    say("poll, connection: %d %d", count, pair[0].revents == POLLIN && !pair[1].revents);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in), FD_SET(other, &in);
    struct timeval limit = {10, 0};
    count = select((fd > other ? fd : other) + 1, &in, NULL, NULL, &limit);
    say("select: %d %d %d time left %d", count, !!FD_ISSET(fd, &in), !!FD_ISSET(other, &in), limit.tv_sec >= 8);
    tell();
}

/* -- a set made before fork: the child waits on it -- */
static void inherited_server(int fd) {
    for (int i = 0; i < 2; i++) {
        await();
        send_all(fd, data, 10);
    }
    await();
}

static void inherited_client(int fd) {
    int set = set_with(fd, EPOLLIN);
    struct epoll_event event;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tell();
        say("child: %d", epoll_wait(set, &event, 1, 10000));
        recv_all(fd, data, 10);
        exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say("child ended: %d", status);
    tell();
    say("parent: %d", epoll_wait(set, &event, 1, 10000));
    recv_all(fd, data, 10);
    tell();
}

static const struct bed_case cases[] = {
    {"states", states_server, states_client},          {"edges", edges_server, edges_client},
    {"room", room_server, room_client},                {"mixed", mixed_server, mixed_client},
    {"inherited", inherited_server, inherited_client}, {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
