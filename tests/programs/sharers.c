/* A set for which a forked child waits, too, and takes nothing: its parent, whose threads wait there, is told of all as without the child.
 *   sharers server|client CASE PORT
 * CASE, by when the child is forked, and begins to wait:
 * `slept`: while a thread sleeps for the set; it begins before anything is told there, and more connections come;
 * `several`: before the connections come; it begins while two of three threads sleep, and the third, which took an event, does not;
 * `told`: before the connections come; it begins at once. Half of them come into the set when they may be on lanes;
 * `silent`: it waits with its parent while unread bytes lie behind registrations that ask for nothing: both sleep;
 * `fired`: the same behind one-shots that have fired; `late`: as silent, of connections that came after the fork, when the parent sleeps.
 * In the end it is killed, and the parent is served alone. */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { KEPT = 4, ALL = 6, ROUNDS = 20, SIZE = 100, PATIENCE_MS = 5000, QUIET_MS = 400 };

static int set, fds[ALL], count, over[2], orders[2], begun[2];
/* Who is told of an event first goes away with it for so long. */
static int goes_away, comes_back[2];
static pid_t parent;

static void control(int op, int fd, unsigned events, unsigned name) {
    struct epoll_event event = {.events = events, .data.u32 = name};
    if (epoll_ctl(set, op, fd, &event)) die("epoll_ctl");
}

static void signal_to(int to) {
    if (write(to, "!", 1) != 1) die("write");
}

static void wait_on(int from) {
    char byte;
    if (read(from, &byte, 1) != 1) die("read");
}

/* -- the parent's threads: they answer -- */
static pid_t numbers[3];

static void *serves(void *number) {
    __atomic_store_n((pid_t *)number, gettid(), __ATOMIC_SEQ_CST);
    for (;;) {
        struct epoll_event event;
        char message[SIZE];
        int told = epoll_wait(set, &event, 1, -1);
        if (told < 0 && errno == EINTR) continue;
        expect(told == 1, "a wait without an end is told of something");
        if (event.data.u32 == ALL) return NULL;
        ssize_t got = recv(fds[event.data.u32], message, SIZE, MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) continue;
        expect(got == SIZE, "a whole message is there");
        send_all(fds[event.data.u32], message, SIZE);
        if (__atomic_exchange_n(&goes_away, 0, __ATOMIC_SEQ_CST)) wait_on(comes_back[0]);
    }
}

static pthread_t threads[3];

static void start(int number) {
    pthread_create(&threads[number], NULL, serves, &numbers[number]);
    while (!__atomic_load_n(&numbers[number], __ATOMIC_SEQ_CST)) usleep(100);
    await_sleep(getpid(), numbers[number]);
}

/* -- the child -- */
/* Whether a wait in which nothing is told lasts its time, and sleeps. */
static int sleeps(void) {
    struct timespec before, after;
    struct epoll_event event;
    int64_t began = now_ms();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    int told = epoll_wait(set, &event, 1, QUIET_MS);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    int64_t used = (after.tv_sec - before.tv_sec) * 1000000000LL + after.tv_nsec - before.tv_nsec;
    if (told == 0 && now_ms() - began >= QUIET_MS && used < 40000000) return 1;
    fprintf(stderr, "told %d in %d ms, %d us of CPU time\n", told, (int)(now_ms() - began), (int)(used / 1000));
    return 0;
}

static pid_t has_child(int is_quiet, int is_second) {
    fflush(stdout);
    pid_t child = fork();
    if (child) return child;
    struct epoll_event event;
    wait_on(orders[0]);
    if (is_second) await_sleep(parent, parent);
    if (is_quiet) {
        if (!is_second) signal_to(begun[1]);
        int is_well = sleeps();
        signal_to(begun[1]);
        if (!is_well) _exit(1);
    } else {
        epoll_wait(set, &event, 1, 0);
        signal_to(begun[1]);
    }
    for (;;) epoll_wait(set, &event, 1, -1);
}

/* -- what the client is to do: u, a message on each; a, their answers come; n, another connection; r, rounds; e, the end -- */
static void has(char order, int listener) {
    if (write(tell_fd, &order, 1) != 1) die("order");
    if (order == 'n') {
        fds[count] = accept_one(listener);
        control(EPOLL_CTL_ADD, fds[count], EPOLLIN, count), count++;
    }
    await();
}

/* Messages of before: the connections may come on lanes. Those from `outside` on are no set's. */
static void warm_up(int outside) {
    for (int i = 0, ended = 0; ended < KEPT; i = (i + 1) % KEPT) {
        struct epoll_event event;
        char message[SIZE];
        if (i < outside) {
            expect(epoll_wait(set, &event, 1, PATIENCE_MS) == 1 && event.data.u32 == (unsigned)i, "told of a message");
        }
        recv_all(fds[i], message, SIZE);
        ended += message[0] == 'e';
        send_all(fds[i], message, SIZE);
    }
}

static void server(int port, const char *how) {
    int is_late = !strcmp(how, "late"), is_fired = !strcmp(how, "fired"), is_quiet = is_late || is_fired || !strcmp(how, "silent");
    int is_told = !strcmp(how, "told"), is_several = !strcmp(how, "several"), status, unread = 0;
    int listener = listen_on(port), outside = is_told ? KEPT / 2 : KEPT, workers = is_several ? 3 : 1;
    pid_t child = 0;
    struct epoll_event event;
    set = epoll_create1(EPOLL_CLOEXEC), parent = getpid();
    if (pipe(over) || pipe(orders) || pipe(begun) || pipe(comes_back)) die("pipe");
    control(EPOLL_CTL_ADD, over[0], EPOLLIN, ALL);
    expect(epoll_wait(set, &event, 1, 0) == 0, "nothing yet");
    if (is_late || is_told || is_several) child = has_child(is_quiet, is_late);
    if (is_told) signal_to(orders[1]), wait_on(begun[0]);
    while (count < KEPT) {
        fds[count] = accept_one(listener);
        if (count < outside) control(EPOLL_CTL_ADD, fds[count], is_fired ? EPOLLIN | EPOLLONESHOT : EPOLLIN, count);
        count++;
    }
    if (is_fired) {
        /* Armed again and again, until each has fired once more. */
        for (int ended = 0; ended < KEPT;) {
            char message[SIZE];
            expect(epoll_wait(set, &event, 1, PATIENCE_MS) == 1, "told of a message");
            recv_all(fds[event.data.u32], message, SIZE);
            ended += message[0] == 'e';
            control(EPOLL_CTL_MOD, fds[event.data.u32], EPOLLIN | EPOLLONESHOT, event.data.u32);
            send_all(fds[event.data.u32], message, SIZE);
        }
    } else {
        warm_up(outside);
    }
    if (is_quiet) {
        has('u', listener);
        for (int i = 0; i < KEPT; i++, unread = 0) {
            while (unread < SIZE) expect(ioctl(fds[i], FIONREAD, &unread) == 0, "FIONREAD");
            if (is_fired) expect(epoll_wait(set, &event, 1, PATIENCE_MS) == 1, "one event of each");
            else control(EPOLL_CTL_MOD, fds[i], 0, i);
        }
        if (!is_late) child = has_child(1, 0);
        signal_to(orders[1]);
        if (!is_late) wait_on(begun[0]);
        say("it sleeps: %d", sleeps());
        wait_on(begun[0]);
        for (int i = 0; i < KEPT; i++) control(EPOLL_CTL_MOD, fds[i], EPOLLIN, i);
        start(0);
        has('a', listener);
    } else {
        for (int i = outside; i < KEPT; i++) control(EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
        for (int i = 0; i < workers; i++) start(i);
        if (!child) child = has_child(0, 0);
        if (is_several) {
            goes_away = 1;
            has('1', listener);
            while (__atomic_load_n(&goes_away, __ATOMIC_SEQ_CST)) usleep(100);
        }
        if (!is_told) signal_to(orders[1]), wait_on(begun[0]);
    }
    has('r', listener);
    while (count < ALL) has('n', listener);
    has('r', listener);
    /* Alone again. */
    kill(child, SIGKILL);
    expect(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child was there until now");
    has('r', listener);
    if (is_several) signal_to(comes_back[1]);
    has('r', listener);
    signal_to(over[1]);
    for (int i = 0; i < workers; i++) pthread_join(threads[i], NULL);
    has('e', listener);
    say("served");
}

static void ask(int fd, char first) {
    char message[SIZE] = {first};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    send_all(fd, message, SIZE);
}

static int is_told(int fd) {
    char message[SIZE];
    return recv(fd, message, SIZE, MSG_WAITALL) == SIZE;
}

static int is_answered(int fd, char first) {
    ask(fd, first);
    return is_told(fd);
}

static void client(int port) {
    int answered = 0;
    char order;
    for (; count < KEPT; count++) fds[count] = connect_to(port);
    int64_t began = now_ms();
    for (int round = 0, warm = 0; !warm; round++) {
        if (round > 256) usleep(1000);
        warm = is_warm(round, began);
        for (int i = 0; i < KEPT; i++) expect(is_answered(fds[i], warm ? 'e' : 'c'), "answered before");
    }
    do {
        expect(read(wait_fd, &order, 1) == 1, "an order");
        if (order == 'n') fds[count++] = connect_to(port);
        for (int i = 0; order == 'u' && i < count; i++) ask(fds[i], 'c');
        for (int i = 0; order == 'a' && i < count; i++) expect(is_told(fds[i]), "what was unread is answered");
        if (order == '1') expect(is_answered(fds[0], 'c'), "one is answered");
        for (int i = 0; order == 'r' && i < count * ROUNDS; i++, answered++) {
            if (i / count % 2) usleep(3000); /* longer than a wait spins */
            expect(is_answered(fds[i % count], 'c'), "each is answered");
        }
        tell();
    } while (order != 'e');
    say("answered %d", answered);
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    sync_open(is_server);
    if (is_server) server(port, argv[2]);
    else client(port);
    return 0;
}
