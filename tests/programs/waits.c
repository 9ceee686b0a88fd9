/* Waiting for a connection among other things: thousands of descriptors, signal masks, timers and listeners, a flood.
 *   waits server|client CASE PORT */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/timerfd.h>

static int new_set(void) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0) die("epoll_create1");
    return set;
}

static void add(int set, int fd, unsigned events, unsigned name) {
    struct epoll_event event = {.events = events, .data.u32 = name};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("EPOLL_CTL_ADD");
}

static void set_off(int fd) {
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) != sizeof one) die("write to an eventfd");
}

/* Of what a kernel's poll() shows the kernel tells sets a moment later: it has done so when the sender tells us. */
static void shown(long polled) {
    expect(polled == 1, "it comes");
    await();
}

/* -- 10,000 descriptors in one set and in one poll() -- */
enum { MANY = 10000, READY = 700 };

static int others[MANY];

static int open_many(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit");
    limit.rlim_cur = limit.rlim_max < MANY + 500 ? limit.rlim_max : MANY + 500;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    int count = limit.rlim_cur < MANY + 500 ? (int)limit.rlim_cur - 500 : MANY;
    for (int i = 0; i < count; i++)
        if ((others[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) die("eventfd");
    expect(count > READY, "RLIMIT_NOFILE permits more than a thousand");
    return count;
}

/* Names of those reported by `calls` calls for `most` events each. */
static void reported(int set, int most, int calls, const char *when) {
    static struct epoll_event events[MANY + 1];
    static unsigned char seen[MANY + 1];
    int all = 0, distinct = 0, last = 0;
    memset(seen, 0, sizeof seen);
    for (int call = 0; call < calls; call++) {
        last = epoll_wait(set, events, most, 0);
        for (int i = 0; i < last; i++, all++) distinct += !seen[events[i].data.u32]++;
    }
    say("%s, %d calls for %d: %d events of %d, the last call %d; the connection: %d", when, calls, most, all, distinct, last, seen[MANY] > 0);
}

static void thousands_client(int fd) {
    static struct pollfd fds[MANY + 1];
    static struct epoll_event one;
    char byte;
    int count = open_many(), set = new_set();
    for (int i = 0; i < count; i++) {
        add(set, others[i], EPOLLIN, i);
        fds[i] = (struct pollfd){others[i], POLLIN, 0};
    }
    add(set, fd, EPOLLIN, MANY);
    fds[count] = fds[count - 1], fds[count - 1] = (struct pollfd){fd, POLLIN, 0};
    reported(set, MANY, 1, "nothing there");
    say("poll of all: %s", outcome(poll(fds, count + 1, 0)));
    tell();
    say("epoll_wait: %s", outcome(epoll_wait(set, &one, 1, 10000)));
    say("poll: %s, revents %d", outcome(poll(fds, count + 1, 10000)), fds[count - 1].revents);
    for (int i = 0; i < READY; i++) set_off(others[i]);
    reported(set, MANY, 1, "700 more");
    reported(set, 50, 15, "700 more");
    say("poll: %s, revents %d", outcome(poll(fds, count + 1, -1)), fds[count - 1].revents);
    say("the byte: %s", outcome(recv(fd, &byte, 1, 0)));
    reported(set, MANY, 1, "the byte taken");
    for (int i = 0; i < READY; i++) close(others[i]);
    reported(set, MANY, 1, "700 closed");
    tell();
}

static void thousands_server(int fd) {
    await();
    send_all(fd, "!", 1);
    await();
}

/* -- a mask for the time of the wait: a signal ends it where nothing is ready, and only then -- */
static volatile sig_atomic_t handled;

static void on_signal(int number) {
    (void)number;
    handled++;
}

static void masked(int fd, int set, const char *when, struct timespec patience) {
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set reading;
    sigset_t none;
    sigemptyset(&none);
    for (int way = 0; way < 4; way++) {
        static const char *const names[] = {"ppoll", "pselect", "epoll_pwait", "epoll_pwait2"};
        long result = -1;
        raise(SIGUSR1);
        handled = 0;
        FD_ZERO(&reading);
        FD_SET(fd, &reading);
        if (way == 0) result = ppoll(&one, 1, &patience, &none);
        else if (way == 1) result = pselect(fd + 1, &reading, NULL, NULL, &patience, &none);
        else if (way == 2) result = epoll_pwait(set, &event, 1, patience.tv_sec * 1000 + 1, &none);
        else result = epoll_pwait2(set, &event, 1, &patience, &none);
        say("%s, %s: %s, handler %d", names[way], when, outcome(result), (int)handled);
    }
    sigset_t pending;
    sigpending(&pending);
    say("%s, pending after: %d", when, sigismember(&pending, SIGUSR1));
}

static void masks_client(int fd) {
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t blocked;
    char byte;
    int set = new_set();
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    if (sigaction(SIGUSR1, &action, NULL) || sigprocmask(SIG_BLOCK, &blocked, NULL)) die("signals");
    add(set, fd, EPOLLIN, 0);
    const struct timespec long_time = {5, 0}, no_time = {0, 1};
    masked(fd, set, "quiet", long_time);
    /* Over before anybody has looked: a pending signal comes first all the same. */
    masked(fd, set, "quiet, in no time", no_time);
    tell();
    struct pollfd one = {fd, POLLIN, 0};
    expect(poll(&one, 1, 10000) == 1, "the byte comes");
    masked(fd, set, "readable", long_time);
    say("the byte: %s", outcome(recv(fd, &byte, 1, 0)));
    masked(fd, set, "quiet again", long_time);
    tell();
}

#define masks_server thousands_server

/* -- what the kernel refuses before it looks at what is ready: a mask that is not there, and more entries than RLIMIT_NOFILE -- */
static void refused_client(int fd) {
    static struct pollfd many[2000];
    const sigset_t *nowhere = (const sigset_t *)8;
    const struct timespec patience = {5, 0};
    struct rlimit limit;
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set reading;
    char byte;
    int set = new_set();
    add(set, fd, EPOLLIN, 0);
    tell();
    expect(poll(&one, 1, 10000) == 1, "the byte comes");
    await();
    say("ppoll: %s", outcome(ppoll(&one, 1, &patience, nowhere)));
    FD_ZERO(&reading);
    FD_SET(fd, &reading);
    say("pselect: %s", outcome(pselect(fd + 1, &reading, NULL, NULL, &patience, nowhere)));
    say("epoll_pwait: %s", outcome(epoll_pwait(set, &event, 1, 5000, nowhere)));
    say("epoll_pwait2: %s", outcome(epoll_pwait2(set, &event, 1, &patience, nowhere)));
    for (int i = 0; i < 2000; i++) many[i] = (struct pollfd){i == 1 ? fd : -1, POLLIN, 0};
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit");
    for (int most = 1999; most <= 2000; most++) {
        limit.rlim_cur = most;
        if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
        say("of %d: %s", most, outcome(poll(many, 2000, 5000)));
    }
    say("the byte: %s", outcome(recv(fd, &byte, 1, 0)));
    tell();
}

static void refused_server(int fd) {
    await();
    send_all(fd, "!", 1);
    tell();
    await();
}

/* -- pipes, timers and a listener in one wait with the connection -- */
static void timers_client(int fd) {
    int ends[2], timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), listener = listen_on(0), set = new_set();
    struct itimerspec soon = {.it_value = {0, 30000000}};
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    if (pipe(ends) || timer < 0 || getsockname(listener, (struct sockaddr *)&address, &length)) die("others");
    int kinds[] = {fd, ends[0], timer, listener}, guest = -1, most = 0;
    for (int i = 0; i < 4; i++) {
        add(set, kinds[i], EPOLLIN, i);
        most = kinds[i] > most ? kinds[i] : most;
    }
    for (int step = 0; step < 5; step++) {
        static const char *const what[] = {"nothing", "a timer", "a pipe too", "a guest too", "a byte too"};
        struct pollfd fds[4];
        struct epoll_event events[8];
        struct timeval none = {0, 0};
        fd_set reading;
        if (step == 1) {
            timerfd_settime(timer, 0, &soon, NULL);
            say("epoll_wait until it: %s, which %d", outcome(epoll_wait(set, events, 8, 10000)), (int)events[0].data.u32);
        } else if (step == 2) {
            if (write(ends[1], "p", 1) != 1) die("write");
        } else if (step == 3) {
            guest = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (connect(guest, (struct sockaddr *)&address, length)) die("connect");
        } else if (step == 4) {
            tell();
            struct pollfd one = {fd, POLLIN, 0};
            shown(poll(&one, 1, 10000));
        }
        FD_ZERO(&reading);
        for (int i = 0; i < 4; i++) {
            fds[i] = (struct pollfd){kinds[i], POLLIN, 0};
            FD_SET(kinds[i], &reading);
        }
        say("%s: poll %s", what[step], outcome(poll(fds, 4, 0)));
        say("%s: select %s", what[step], outcome(select(most + 1, &reading, NULL, NULL, &none)));
        int count = epoll_wait(set, events, 8, 0), names = 0;
        for (int i = 0; i < count; i++) names |= 1 << events[i].data.u32;
        int polled = 0, selected = 0;
        for (int i = 0; i < 4; i++) polled |= (fds[i].revents == POLLIN) << i, selected |= !!FD_ISSET(kinds[i], &reading) << i;
        say("%s: epoll_wait %d, which %x %x %x", what[step], count, names, polled, selected);
    }
    close(guest);
    tell();
}

static void timers_server(int fd) {
    await();
    send_all(fd, "!", 1);
    tell();
    await();
}

/* -- a set whose events found no room, and a connection of which it has not spoken: the next call knows of it -- */
static void filled_client(int fd) {
    int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), set = new_set(), names = 0;
    struct epoll_event events[8];
    add(set, bell, EPOLLIN, 0);
    add(set, fd, EPOLLIN | EPOLLRDHUP, 1);
    say("nothing: %s", outcome(epoll_wait(set, events, 8, 20)));
    set_off(bell);
    say("room for one: %s, which %d", outcome(epoll_wait(set, events, 1, 10000)), (int)events[0].data.u32);
    tell();
    struct pollfd one = {fd, POLLRDHUP, 0};
    shown(unseen_call(SYS_poll, (long)&one, 1, 10000, 0));
    int count = epoll_wait(set, events, 8, 0);
    for (int i = 0; i < count; i++) names |= (int)events[i].events << 16 * events[i].data.u32;
    say("the end: %d events, %x", count, names);
    tell();
}

static void filled_server(int fd) {
    await();
    unseen_call(SYS_shutdown, fd, SHUT_WR, 0, 0); /* TCP alone tells of it, as of an end that is killed */
    tell();
    await();
}

/* -- a flood on one connection keeps nothing else out -- */
static void flood_client(int fd) {
    static unsigned char bytes[100];
    int bell = eventfd(0, EFD_NONBLOCK), set = new_set(), seen = 0;
    struct epoll_event event;
    add(set, fd, EPOLLIN, 0);
    add(set, bell, EPOLLIN, 1);
    tell();
    /* Waiting, and then without: seen again and again, as nobody takes it back. */
    for (int call = 0; call < 1000000 && seen < 6; call++) {
        if (call == 1000) set_off(bell);
        int ready = epoll_wait(set, &event, 1, seen < 3 ? 10000 : 0);
        expect(ready == 1 || (ready == 0 && seen >= 3), "the flood goes on");
        if (ready == 1 && event.data.u32 == 0) recv_all(fd, bytes, sizeof bytes);
        else seen += ready;
    }
    say("the bell was seen: %d", seen);
    shutdown(fd, SHUT_RDWR);
    tell();
}

static void flood_server(int fd) {
    static unsigned char bytes[10000];
    await();
    while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0) {}
    await();
}

/* -- as many entries as a process may have descriptors, and a process that may open none -- */
static void few_client(int fd) {
    enum { MOST = 64 };
    static struct pollfd entries[MOST];
    struct rlimit limit;
    struct timespec cpu;
    char byte;
    if (getrlimit(RLIMIT_NOFILE, &limit)) die("getrlimit");
    for (int i = 0; i < MOST; i++) entries[i].fd = -1;
    entries[5] = (struct pollfd){fd, POLLIN, 0};
    limit.rlim_cur = MOST;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    tell();
    say("poll: %s", outcome(poll(entries, MOST, 10000)));
    recv_all(fd, &byte, 1);
    limit.rlim_cur = 1;
    if (setrlimit(RLIMIT_NOFILE, &limit)) die("setrlimit");
    tell();
    say("poll: %s", outcome(poll(entries + 5, 1, 10000)));
    recv_all(fd, &byte, 1);
    tell();
    recv_all(fd, &byte, 1);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    int64_t before = cpu.tv_sec * 1000000000LL + cpu.tv_nsec;
    tell();
    recv_all(fd, &byte, 1);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    say("it slept: %d", cpu.tv_sec * 1000000000LL + cpu.tv_nsec - before < 150000000);
}

static void few_server(int fd) {
    for (int i = 0; i < 4; i++) {
        await();
        usleep(i < 3 ? 100000 : 500000);
        send_all(fd, "!", 1);
    }
}

/* -- select() for exceptional conditions alone: a peer that resets is none -- */
static void exceptional_client(int fd) {
    tell();
    for (int i = 0; i < 3; i++) {
        struct timeval left = {0, 300000};
        fd_set exceptional;
        int64_t began = now_ms();
        FD_ZERO(&exceptional);
        FD_SET(fd, &exceptional);
        int told = select(fd + 1, NULL, NULL, &exceptional, &left);
        say("select: %d, the whole time: %d, left: %d", told, now_ms() - began >= 290, left.tv_usec != 0);
    }
    tell();
}

static void exceptional_server(int fd) {
    struct linger none = {1, 0};
    await();
    usleep(100000);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
    await();
}

/* -- both ends write before they read: TCP's buffers take it, and neither waits for the other -- */
static void mutual(int fd, int is_first) {
    enum { ROUNDS = 60, SIZE = 400000, SLOW_MS = 60 };
    static unsigned char bytes[SIZE];
    int slow = 0;
    for (int round = 0; round < ROUNDS; round++) {
        /* Both begin at once. */
        if (is_first) send_all(fd, bytes, 1), recv_all(fd, bytes, 1);
        else recv_all(fd, bytes, 1), send_all(fd, bytes, 1);
        int64_t began = now_ms();
        send_all(fd, bytes, SIZE);
        recv_all(fd, bytes, SIZE);
        slow += now_ms() - began >= SLOW_MS;
    }
    say("stalls: %s", slow ? "some" : "none");
}

static void mutual_client(int fd) { mutual(fd, 1); }
static void mutual_server(int fd) { mutual(fd, 0); }

int main(int argc, char **argv) {
    static const struct bed_case cases[] = {
        {"thousands", thousands_server, thousands_client}, {"masks", masks_server, masks_client},
        {"refused", refused_server, refused_client},
        {"timers", timers_server, timers_client},          {"flood", flood_server, flood_client},
        {"filled", filled_server, filled_client},          {"few", few_server, few_client},
        {"mutual", mutual_server, mutual_client},
        {"exceptional", exceptional_server, exceptional_client},
        {NULL, NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
