/* Threads in calls on descriptors, and what another one does meanwhile to the number, to its flags, or with the set.
 *   numbers server|client CASE PORT
 * CASE: the number of a send under way goes to a new connection, by `resold` (close, accept) or `replaced` (dup2); a set's number goes to a new
 * set under a thread that waits (`renumbered`), and that has an event before the thread wakes (`retaken`); O_NONBLOCK comes under a recv, by a
 * thread (`unblocked`) or a child (`kin`), or under a send (`unblocked-send`); a thread closes all in a table of its own (`unshared`); a `pool`
 * of threads has one-shots, and one of them is busy. */
#include "bed.h"
#include <linux/close_range.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MOST = 16, SIZE = 100, MB = 1 << 20, BULK = 32 * MB, LATE_MS = 40, PATIENCE_MS = 20000 };

static int fds[MOST], count, port, listener;
static char bulk[BULK] __attribute__((aligned(4096)));

static void meanwhile(pthread_t *thread, void *(*does)(void *), void *argument) {
    if (pthread_create(thread, NULL, does, argument)) die("pthread_create");
}

/* -- a send whose number is another connection's before it is over: that one gets none of its bytes -- */
static int held[2], let_go[2], is_over;

/* Of a signal: it keeps its thread between two parts of the send. */
static void holds(int signal) {
    char byte;
    (void)signal;
    if (write(held[1], "!", 1) != 1 || read(let_go[0], &byte, 1) != 1) _exit(70);
}

static void *sends(void *number) {
    ssize_t sent = send(*(int *)number, bulk, BULK, MSG_NOSIGNAL);
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) usleep(100); /* still there for the signal */
    return (void *)(intptr_t)sent;
}

static void resells(int by_dup2) {
    struct sigaction action = {.sa_handler = holds, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    if (pipe(held) || pipe(let_go)) die("pipe");
    for (int i = 0; i < count; i++) {
        int number = fds[i];
        pthread_t thread;
        void *sent;
        char byte;
        is_over = 0;
        /* Pages that the send has to fault in make it slower than its reader: it goes on, and does not sleep for room. */
        if (madvise(bulk, BULK, MADV_NOHUGEPAGE) || madvise(bulk, BULK, MADV_DONTNEED)) die("madvise");
        await();
        meanwhile(&thread, sends, &number);
        await();
        pthread_kill(thread, SIGUSR1);
        expect(read(held[0], &byte, 1) == 1, "the thread is held");
        if (!by_dup2) close(number);
        int next = accept_one(listener);
        if (by_dup2) expect(dup2(next, number) == number, "dup2"), close(next);
        else expect(next == number, "the number is free, and the lowest");
        __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
        if (write(let_go[1], "!", 1) != 1) die("write");
        pthread_join(thread, &sent);
        send(number, &sent, sizeof sent, MSG_NOSIGNAL);
        shutdown(number, SHUT_WR);
        await();
    }
}

static void resold_server(int fd) { (void)fd; resells(0); }
static void replaced_server(int fd) { (void)fd; resells(1); }

static void resold_client(int fd) {
    int strange = 0, missing = 0;
    for (int i = 0; i < count; i++) {
        int64_t got = 0, sent = -1;
        char more;
        int next = connect_to(port);
        tell();
        for (ssize_t n; (n = recv(fds[i], bulk, 65536, 0)) > 0; got += n) {
            if (got < MB && got + n >= MB) tell();
        }
        strange += recv(next, &sent, sizeof sent, MSG_WAITALL) != sizeof sent || recv(next, &more, 1, 0) != 0;
        missing += got != sent;
        close(fd = next);
        tell();
    }
    say("new connections that got another's bytes: %d", strange);
    say("sends that say other than what came: %d", missing);
}

/* -- a set whose number is a new set's under a thread that waits -- */
static int set;
static pid_t waiter;
static sem_t ended;

static void add(int to, int fd, unsigned events, unsigned word) {
    struct epoll_event event = {.events = events, .data.u32 = word};
    if (epoll_ctl(to, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void say_told(const char *who, int of, int ms) {
    struct epoll_event event = {0};
    int told = epoll_wait(of, &event, 1, ms);
    say("%s: %s, word %u", who, outcome(told), event.data.u32);
}

static void *waits(void *unused) {
    __atomic_store_n(&waiter, gettid(), __ATOMIC_SEQ_CST);
    say_told("the old set's waiter", set, PATIENCE_MS);
    sem_wait(&ended);
    return unused;
}

static void renumbers(int fd, int is_early) {
    pthread_t thread;
    int ends[2];
    if (pipe(ends)) die("pipe");
    sem_init(&ended, 0, 0);
    add(set = epoll_create1(EPOLL_CLOEXEC), fd, EPOLLIN, 7);
    meanwhile(&thread, waits, NULL);
    while (!__atomic_load_n(&waiter, __ATOMIC_SEQ_CST)) usleep(100);
    await_sleep(getpid(), waiter);
    close(set);
    expect(epoll_create1(EPOLL_CLOEXEC) == set, "the number is free, and the lowest");
    add(set, ends[0], EPOLLIN | EPOLLET, 9);
    if (is_early && write(ends[1], "!", 1) != 1) die("write");
    tell(), await();
    /* It has heard of the byte, and has ended, or waits on. */
    await_sleep(getpid(), waiter);
    if (!is_early && write(ends[1], "!", 1) != 1) die("write");
    sem_post(&ended);
    pthread_join(thread, NULL);
    say_told("the new set's", set, PATIENCE_MS / 10);
    tell();
}

static void renumbered_server(int fd) { renumbers(fd, 0); }
static void retaken_server(int fd) { renumbers(fd, 1); }

static void byte_client(int fd) {
    await();
    say("sent: %s", outcome(send(fd, "!", 1, MSG_NOSIGNAL)));
    tell();
    await();
}

/* -- O_NONBLOCK, set while the first thread of `process` sleeps in a call: that goes on as it began -- */
static void unblocks(pid_t process) {
    await_sleep(process, process);
    fcntl(fds[0], F_SETFL, O_RDWR | O_NONBLOCK);
    /* Whose other connection is shut looks again at what it waits for. */
    if (process == getpid()) shutdown(fds[1], SHUT_RD);
    else usleep(100000); /* a sleep on what a child shares ends, and begins anew, each 20 ms */
    await_sleep(process, process);
    tell();
}

static void *unblocks_recv(void *unused) {
    unblocks(getpid());
    return unused;
}

static void unblocked_server(int fd) {
    pthread_t thread;
    char byte;
    meanwhile(&thread, unblocks_recv, NULL);
    say("recv: %s", outcome(recv(fd, &byte, 1, 0)));
    pthread_join(thread, NULL);
    say("the next: %s", outcome(recv(fd, &byte, 1, 0)));
    await(), tell();
}

static void kin_server(int fd) {
    int status;
    char byte;
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        unblocks(parent);
        _exit(0);
    }
    say("recv: %s", outcome(recv(fd, &byte, 1, 0)));
    expect(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
    say("the next: %s", outcome(recv(fd, &byte, 1, 0)));
    await(), tell();
}

static void *unblocks_send(void *unused) {
    await();
    fcntl(fds[0], F_SETFL, O_RDWR | O_NONBLOCK);
    tell();
    return unused;
}

static void unblocked_send_server(int fd) {
    pthread_t thread;
    meanwhile(&thread, unblocks_send, NULL);
    say("send: %s", outcome(send(fd, bulk, BULK, MSG_NOSIGNAL)));
    pthread_join(thread, NULL);
    shutdown(fd, SHUT_WR);
    await();
}

/* Reads at a walk for a while, so that the sender waits for room again and again, and its lane stays. */
static void unblocked_send_client(int fd) {
    size_t got = 0;
    for (ssize_t n; (n = recv(fd, bulk, 65536, 0)) > 0; got += n) {
        if (got < 2 * MB && got + n >= 2 * MB) tell(), await();
        if (got < 12 * MB) usleep(500);
    }
    say("got: %zu", got);
    tell();
}

/* -- a thread closes all, in a table of its own: the others' connections live on, with what is unread -- */
static void *closes_all(void *unused) {
    say("close_range: %s", outcome(close_range(3, ~0u, CLOSE_RANGE_UNSHARE)));
    return unused;
}

static void unshared_server(int fd) {
    char message[SIZE] = {0};
    struct linger linger;
    pthread_t thread;
    await();
    for (int i = 0; i < count; i++) send_all(fds[i], message, SIZE);
    meanwhile(&thread, closes_all, NULL);
    pthread_join(thread, NULL);
    for (int i = 0; i < count; i++) {
        send_all(fds[i], message, SIZE);
        getsockopt(fds[i], SOL_SOCKET, SO_LINGER, &linger, &(socklen_t){sizeof linger});
        say("linger: %d", linger.l_onoff);
    }
    tell();
    for (int i = 0; i < count; i++) say("recv: %s", outcome(recv(fds[i], message, SIZE, MSG_WAITALL)));
    await();
    for (int i = 0; i < count; i++) close(fds[i]);
    (void)fd;
}

static void unshared_client(int fd) {
    char message[2 * SIZE] = {0};
    for (int i = 0; i < count; i++) send_all(fds[i], message, SIZE);
    tell(), await();
    for (int i = 0; i < count; i++) say("recv: %s", outcome(recv(fds[i], message, 2 * SIZE, MSG_WAITALL)));
    tell();
    for (int i = 0; i < count; i++) say("the end: %s", outcome(recv(fds[i], message, 1, 0)));
    (void)fd;
}

/* -- one-shots, a pool of threads, and one of them busy: a message of another connection wakes one of those that sleep -- */
enum { THREADS = 4, ROUNDS = 8 };

static void *serves(void *unused) {
    for (;;) {
        struct epoll_event event;
        char message[SIZE];
        if (epoll_wait(set, &event, 1, -1) != 1) continue;
        if (recv(event.data.fd, message, SIZE, MSG_DONTWAIT) != SIZE) {
            sem_post(&ended);
            continue;
        }
        if (message[0] == 's') tell(), await();
        send_all(event.data.fd, message, SIZE);
        event.events = EPOLLIN | EPOLLONESHOT;
        if (epoll_ctl(set, EPOLL_CTL_MOD, event.data.fd, &event)) die("EPOLL_CTL_MOD");
    }
    return unused;
}

static void pool_server(int fd) {
    pthread_t threads[THREADS];
    sem_init(&ended, 0, 0);
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < THREADS; i++) meanwhile(&threads[i], serves, NULL);
    for (int i = 0; i < count; i++) add(set, fds[i], EPOLLIN | EPOLLONESHOT, fds[i]);
    for (int i = 0; i < count; i++) sem_wait(&ended);
    say("the end: %s", outcome(recv(fd, &(char){0}, 1, 0)));
}

static void ask(int fd, char first) {
    char message[SIZE] = {first};
    send_all(fd, message, SIZE);
}

static void answered(int fd) {
    char message[SIZE];
    recv_all(fd, message, SIZE);
}

/* A message waits for a CPU only, some ms on a busy machine, and not in most rounds. Where it wakes nobody it takes 90 ms, in nearly all of them
 * (under --eager in half of them, or in two of three runs). */
static void pool_client(int fd) {
    int late = 0;
    for (int i = 0; i < 100 * count; i++) ask(fds[i % count], 'q'), answered(fds[i % count]);
    for (int round = 0; round < ROUNDS; round++) {
        int is_late = 0;
        usleep(5000);
        ask(fd, 's');
        await();
        for (int i = 1; i < count; i++) {
            usleep(5000); /* longer than a wait spins */
            int64_t began = now_ms();
            ask(fds[i], 'q'), answered(fds[i]);
            is_late |= now_ms() - began > LATE_MS;
        }
        tell();
        answered(fd);
        late += is_late;
    }
    if (late) fprintf(stderr, "late in %d rounds\n", late);
    say("late in most rounds: %d", late > 3);
    for (int i = 0; i < count; i++) shutdown(fds[i], SHUT_WR);
}

/* -- */
static const struct numbers_case {
    const char *name;
    int connections, settles;
    void (*server)(int fd), (*client)(int fd);
} cases[] = {
    {"resold", MOST, 0, resold_server, resold_client},
    {"replaced", MOST, 0, replaced_server, resold_client},
    {"renumbered", 1, 1, renumbered_server, byte_client},
    {"retaken", 1, 0, retaken_server, byte_client},
    {"unblocked", 2, 0, unblocked_server, byte_client},
    {"kin", 1, 0, kin_server, byte_client},
    {"unblocked-send", 1, 0, unblocked_send_server, unblocked_send_client},
    {"unshared", 2, 0, unshared_server, unshared_client},
    {"pool", 4, 1, pool_server, pool_client},
};

int main(int argc, char **argv) {
    const struct numbers_case *one = cases;
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server");
    while (one < cases + sizeof cases / sizeof *cases && strcmp(one->name, argv[2])) one++;
    expect(one < cases + sizeof cases / sizeof *cases, "the case is known");
    port = atoi(argv[3]);
    sync_open(is_server);
    if (is_server) listener = listen_on(port);
    for (; count < one->connections; count++) fds[count] = is_server ? accept_one(listener) : connect_to(port);
    int64_t began = now_ms();
    for (int round = 0, is_over = 0; !is_over; round++) {
        char message[SIZE] = {0};
        if (round > 256 && !is_server) usleep(1000);
        if (!is_server) is_over = is_warm(round, began);
        for (int i = 0; i < count; i++) {
            if (!is_server) ask(fds[i], is_over ? 'e' : 'c'), answered(fds[i]);
            else recv_all(fds[i], message, SIZE), send_all(fds[i], message, SIZE);
        }
        if (is_server) is_over = message[0] == 'e';
    }
    /* Under --eager a sleep is for what the broker says, too, until no connection has come for so long. */
    if (one->settles) usleep(2100000);
    (is_server ? one->server : one->client)(fds[0]);
    say("done");
    return 0;
}
