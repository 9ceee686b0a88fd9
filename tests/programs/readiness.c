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

/* -- what is unread is less than TCP's buffers take: there is room for more, whatever a ring's window happens to be -- */
static const int unread_sizes[] = {13000, 3384, 15000, 16384, 1, 32768, 28741, 40000, 20000, 4096};
#define UNREAD_SIZES (sizeof unread_sizes / sizeof *unread_sizes)

static void space_server(int fd) {
    for (size_t i = 0; i < UNREAD_SIZES; i++) {
        await();
        recv_all(fd, data, unread_sizes[i]);
        tell();
    }
    await();
    recv_all(fd, data, 1000);
    tell(), await();
    drain_what_is_there(fd);
    tell(), await();
}

static void say_writable(const char *when, int fd, int set) {
    struct pollfd entry = {fd, POLLOUT, 0};
    int polled = poll(&entry, 1, 0);
    fd_set out;
    struct timeval none = {0, 0};
    FD_ZERO(&out);
    FD_SET(fd, &out);
    int selected = select(fd + 1, NULL, &out, NULL, &none);
    struct epoll_event event;
    say("%s: poll %d select %d epoll %d", when, polled, selected, epoll_wait(set, &event, 1, 0));
}

static void space_client(int fd) {
    int set = set_with(fd, EPOLLOUT);
    for (size_t i = 0; i < UNREAD_SIZES; i++) {
        say("sent: %s", outcome(send(fd, data, unread_sizes[i], MSG_DONTWAIT | MSG_NOSIGNAL)));
        say_writable("unread", fd, set);
        tell(), await();
        say_writable("read", fd, set);
    }
    fill(fd);
    say_writable("full", fd, set);
    tell(), await();
    say_writable("full but for a little", fd, set);
    tell(), await();
    say_writable("read", fd, set);
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

/* -- interest in one kind only, and two ends of it: no event that was not asked for, none lost -- */
static void asked_server(int fd) {
    await();
    send_all(fd, data, 100);
    tell(), await();
    shutdown(fd, SHUT_WR);
    tell(), await();
}

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void asked_client(int fd) {
    int out = set_with(fd, EPOLLOUT | EPOLLET), in = set_with(fd, EPOLLIN | EPOLLET), hang = set_with(fd, EPOLLRDHUP);
    int alone = set_with(fd, EPOLLIN | EPOLLEXCLUSIVE), normal = set_with(fd, EPOLLRDNORM);
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    say_wait("out", out), say_wait("in", in), say_wait("hang", hang), say_wait("alone", alone);
    say("modify the exclusive: %s", outcome(epoll_ctl(alone, EPOLL_CTL_MOD, fd, &event)));
    tell(), await();
    say_wait("out, on bytes", out), say_wait("in, on bytes", in), say_wait("hang, on bytes", hang);
    say_wait("alone, on bytes", alone), say_wait("normal, on bytes", normal);
    double before = cpu_seconds();
    say("out, a wait in vain: %d", epoll_wait(out, &event, 1, 300));
    say("in, a wait in vain: %d", epoll_wait(in, &event, 1, 300));
    say("asleep in vain: %d", cpu_seconds() - before < 0.1);
    tell(), await();
    say_wait("hang, half closed", hang), say_wait("alone, half closed", alone);
    before = cpu_seconds();
    while (epoll_wait(in, &event, 1, 300) > 0) {}
    say("asleep in vain: %d", cpu_seconds() - before < 0.1);
    recv_all(fd, data, 100);
    say("end: %s", outcome(recv(fd, data, 1, 0)));
    tell();
}

/* -- the peer's end while bytes of it are unread: every view has both at once, also where a set watches the connection -- */
static double thread_cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void killed_server(int fd) {
    await();
    send_all(fd, data, 100);
    tell(), await();
    /* as of one that is killed: no hook is there to tell of it */
    if (unseen_call(SYS_shutdown, fd, SHUT_WR, 0, 0)) die("shutdown");
    tell(), await();
}

static void say_poll(const char *when, int fd) {
    struct pollfd entry = {fd, POLLIN | POLLRDHUP, 0};
    int count = poll(&entry, 1, 0);
    say("%s: poll %d %s", when, count, names(entry.revents));
}

static void ended_client(int fd) {
    int level = set_with(fd, EPOLLIN | EPOLLRDHUP);
    say_wait("idle", level);
    tell(), await();
    say_wait("bytes: epoll", level), say_poll("bytes", fd);
    tell(), await();
    say_poll("ended", fd);
    struct pollfd entry = {fd, POLLIN | POLLRDHUP, 0};
    struct timespec none = {0, 0};
    int count = ppoll(&entry, 1, &none, NULL);
    say("ended: ppoll %d %s", count, names(entry.revents));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    struct timeval at_once = {0, 0};
    count = select(fd + 1, &in, NULL, NULL, &at_once);
    say("ended: select %d", count);
    struct epoll_event event;
    count = epoll_wait(level, &event, 1, 10000);
    say("ended: epoll %d %s", count, names(event.events));
    tell();
}

static void killed_client(int fd) {
    int level = set_with(fd, EPOLLIN | EPOLLRDHUP);
    struct pollfd entry = {fd, POLLIN | POLLRDHUP, 0};
    say_wait("idle", level);
    tell(), await();
    say_poll("bytes", fd);
    tell(), await();
    double before = thread_cpu_seconds();
    while (poll(&entry, 1, 0) == 1 && !(entry.revents & POLLRDHUP)) {}
    say("killed: %s", names(entry.revents));
    say("soon: %d", thread_cpu_seconds() - before < 0.02);
    tell();
}

/* -- waits that end without news: by time, to the nanosecond's unit, and by a signal -- */
static void elapsing_server(int fd) {
    await();
    send_all(fd, data, 1);
}

static void note_signal(int number) {
    (void)number;
}

static void *interrupt_later(void *thread) {
    usleep(100000);
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

static void elapsing_client(int fd) {
    int set = set_with(fd, EPOLLIN);
    struct epoll_event event;
    int64_t begin = now_ms();
    say("epoll: %d", epoll_wait(set, &event, 1, 150));
    say("after its time: %d", now_ms() - begin >= 150 && now_ms() - begin < 2000);
    struct timespec brief = {0, 200000};
    int64_t quickest = INT64_MAX;
    for (int i = 0; i < 50; i++) {
        int64_t since = now_ns();
        if (epoll_pwait2(set, &event, 1, &brief, NULL)) die("epoll_pwait2");
        int64_t took = now_ns() - since;
        if (took < quickest) quickest = took;
    }
    /* Not rounded to a millisecond; the quickest of many, as others may have the CPU. */
    say("brief: %d %d", quickest >= 200000, quickest < 900000);
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t self = pthread_self(), other;
    pthread_create(&other, NULL, interrupt_later, &self);
    say("interrupted: %s", outcome(epoll_wait(set, &event, 1, 10000)));
    pthread_join(other, NULL);
    struct pollfd entry = {fd, POLLIN, 0};
    pthread_create(&other, NULL, interrupt_later, &self);
    say("interrupted: %s", outcome(poll(&entry, 1, 10000)));
    pthread_join(other, NULL);
    tell();
    say("then: %d", epoll_wait(set, &event, 1, 10000));
}

/* -- two threads in one set: bytes wake one of them, whichever went back to the program before -- */
static void shared_server(int fd) {
    for (int i = 0; i < 20; i++) {
        await();
        send_all(fd, data, 1);
    }
    await();
}

static int shared_set, woken;
static void *wait_in_set(void *argument) {
    struct epoll_event event;
    int fd = *(int *)argument;
    for (;;) {
        if (epoll_wait(shared_set, &event, 1, -1) != 1) die("epoll_wait");
        char byte;
        ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0) return NULL;
        if (got < 0) continue;
        int count = __atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
        event = (struct epoll_event){EPOLLIN | EPOLLET | EPOLLONESHOT, {.fd = fd}};
        if (count == 20) shutdown(fd, SHUT_RDWR);
        if (epoll_ctl(shared_set, EPOLL_CTL_MOD, fd, &event)) die("epoll_ctl");
        if (count < 20) tell();
    }
}

static void shared_client(int fd) {
    pthread_t threads[2];
    shared_set = set_with(fd, EPOLLIN | EPOLLET | EPOLLONESHOT);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, wait_in_set, &fd);
    tell();
    /* the one that is told of the end leaves; the other one is not */
    while (__atomic_load_n(&woken, __ATOMIC_SEQ_CST) < 20) usleep(1000);
    say("woken: %d", woken);
    tell();
}

/* -- the connection under two numbers: each in a set of its own, and the first one closed -- */
static void twice_server(int fd) {
    for (int i = 0; i < 4; i++) {
        await();
        send_all(fd, data, 10);
        tell();
    }
    await();
}

static void twice_client(int fd) {
    int first = fcntl(fd, F_DUPFD_CLOEXEC, 0), second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int a = set_with(first, EPOLLIN), b = set_with(second, EPOLLIN | EPOLLET), both = set_with(first, EPOLLIN);
    struct epoll_event event = {EPOLLIN, {.fd = second}};
    epoll_ctl(both, EPOLL_CTL_ADD, second, &event);
    for (int i = 0; i < 2; i++) {
        tell();
        say("woken: %d", epoll_wait(b, &event, 1, 10000));
        await();
        say_wait("a", a), say_wait("both", both);
        recv_all(fd, data, 10);
        say_wait("a, read", a), say_wait("both, read", both);
    }
    close(first);
    tell();
    say("a, closed: %d", epoll_wait(a, &event, 1, 10000));
    await();
    say_wait("b", b), say_wait("both", both);
    recv_all(second, data, 10);
    say_wait("a, read", a);
    tell(), await();
    say_wait("b", b);
    tell();
}

/* -- a set that comes into another one while bytes are unread in it, and the peer is silent: what each read leaves is told of again -- */
static void leftover_server(int fd) {
    for (int i = 0; i < 2; i++) {
        await();
        send_all(fd, data, 100);
        tell();
    }
    await();
}

static void leftover_client(int fd) {
    int inner = set_with(fd, EPOLLIN);
    tell(), await();
    say_wait("inner", inner);
    int outer = set_with(inner, EPOLLIN), edge = set_with(inner, EPOLLIN | EPOLLET);
    struct pollfd all = {inner, POLLIN, 0};
    say_wait("outer, by edges", edge);
    for (int left = 100; left >= 0; left -= 25) {
        say("%d left: poll %d", left, poll(&all, 1, 0));
        say_wait("outer", outer), say_wait("outer again", outer), say_wait("inner", inner), say_wait("inner again", inner);
        if (left) recv_all(fd, data, 25);
    }
    tell();
    struct epoll_event event;
    say("woken: %d", epoll_wait(outer, &event, 1, 10000));
    await();
    for (int left = 100; left >= 0; left -= 50) {
        say_wait("outer", outer), say_wait("inner", inner);
        if (left) recv_all(fd, data, 50);
    }
    tell();
}

/* -- a peer that has ended its stream, of which bytes are unread: who waits for neither sleeps -- */
static void finished_server(int fd) {
    send_all(fd, data, 100);
    shutdown(fd, SHUT_WR);
    tell(), await();
}

static void finished_client(int fd) {
    struct pollfd one = {fd, 0, 0};
    fd_set none;
    struct timeval time = {0, 400000};
    await();
    double before = cpu_seconds();
    say("poll: %d", poll(&one, 1, 400));
    say("asleep: %d", cpu_seconds() - before < 0.1);
    before = cpu_seconds();
    FD_ZERO(&none);
    FD_SET(fd, &none);
    say("select: %d", select(fd + 1, NULL, NULL, &none, &time));
    say("asleep: %d", cpu_seconds() - before < 0.1);
    one.events = POLLRDHUP;
    say("for the end: %d", poll(&one, 1, 400));
    recv_all(fd, data, 100);
    say("end: %s", outcome(recv(fd, data, 1, 0)));
    tell();
}

static const struct bed_case cases[] = {
    {"states", states_server, states_client},          {"edges", edges_server, edges_client},
    {"room", room_server, room_client},                {"mixed", mixed_server, mixed_client},
    {"inherited", inherited_server, inherited_client}, {"asked", asked_server, asked_client},
    {"ended", asked_server, ended_client},             {"killed", killed_server, killed_client},
    {"elapsing", elapsing_server, elapsing_client},    {"shared", shared_server, shared_client},
    {"twice", twice_server, twice_client},             {"space", space_server, space_client},
    {"leftover", leftover_server, leftover_client},    {"finished", finished_server, finished_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
