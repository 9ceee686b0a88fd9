/* How a connection ends, and what interrupts a wait: half-close, reset, broken pipe, timeouts, signals.
 *   endings server|client CASE PORT */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>

static unsigned char data[1 << 20];

static void ended(int fd) {
    struct pollfd end = {fd, POLLIN | POLLRDHUP, 0};
    expect(poll(&end, 1, 10000) == 1, "the end is noticed");
}

static ssize_t drain(int fd, uint64_t *hash) {
    ssize_t total = 0, got;
    *hash = HASH_START;
    while ((got = recv(fd, data, sizeof data, 0)) > 0) *hash = hash_more(*hash, data, got), total += got;
    return got < 0 ? got : total;
}

/* -- half-close: one direction ends, the other goes on -- */
static void halfclose_server(int fd) {
    uint64_t hash, seed = 2;
    say("read to the end: %s", outcome(drain(fd, &hash)));
    say("hash %016lx", hash);
    rng_fill(&seed, data, 300000);
    send_all(fd, data, 300000);
    shutdown(fd, SHUT_WR);
    say("after own shutdown: %s", outcome(send(fd, data, 1, MSG_NOSIGNAL)));
    await();
}

static void halfclose_client(int fd) {
    uint64_t hash, seed = 1;
    rng_fill(&seed, data, 300000);
    send_all(fd, data, 300000);
    say("shutdown: %s", outcome(shutdown(fd, SHUT_WR)));
    say("write after it: %s", outcome(send(fd, data, 1, MSG_NOSIGNAL)));
    say("read to the end: %s", outcome(drain(fd, &hash)));
    say("hash %016lx", hash);
    say("once more: %s", outcome(recv(fd, data, 1, 0)));
    tell();
}

/* -- shutdown(SHUT_RD), then SHUT_RDWR wakes a reader in another thread -- */
static void *blocked_reader(void *fd) {
    char byte;
    ssize_t got = recv(*(int *)fd, &byte, 1, 0);
    return (void *)(intptr_t)got;
}

static void shutdowns_server(int fd) {
    uint64_t hash;
    say("to the end: %s", outcome(drain(fd, &hash)));
    tell();
    await();
}

static void shutdowns_client(int fd) {
    pthread_t reader;
    void *result;
    pthread_create(&reader, NULL, blocked_reader, &fd);
    usleep(100000); /* most likely in recv() by now; the result is the same if it is not */
    say("shutdown: %s", outcome(shutdown(fd, SHUT_RDWR)));
    pthread_join(reader, &result);
    say("reader: %ld", (long)(intptr_t)result);
    say("read: %s", outcome(recv(fd, data, 1, 0)));
    await();
    tell();
}

/* -- writing to a peer that has closed: EPIPE, SIGPIPE -- */
static volatile sig_atomic_t pipes;
static void on_pipe(int signal) {
    (void)signal;
    pipes++;
}

static void say_pipes(const char *what, long result) {
    say("%s: %s signals %d", what, outcome(result), pipes);
}

static void pipe_server(int fd) {
    close(fd);
    tell();
    await();
}

static void pipe_client(int fd) {
    signal(SIGPIPE, on_pipe);
    await();
    ended(fd);
    say("read: %s", outcome(recv(fd, data, 10, 0)));
    say("first write: %s", outcome(send(fd, data, 10, MSG_NOSIGNAL)));
    struct pollfd reset = {fd, 0, 0};
    expect(poll(&reset, 1, 10000) == 1, "the reset arrives");
    say_pipes("next, MSG_NOSIGNAL", send(fd, data, 10, MSG_NOSIGNAL));
    say_pipes("next, write", write(fd, data, 10));
    say_pipes("next, send", send(fd, data, 10, 0));
    say("read: %s", outcome(recv(fd, data, 10, 0)));
    tell();
}

/* -- close() with unread bytes, or with SO_LINGER 0, resets the peer -- */
static void unread_server(int fd) {
    await();
    close(fd);
    tell();
    await();
}

static void unread_client(int fd) {
    send_all(fd, data, 5000);
    tell();
    await();
    ended(fd);
    say("read: %s", outcome(recv(fd, data, 10, 0)));
    say("read: %s", outcome(recv(fd, data, 10, 0)));
    say("write: %s", outcome(send(fd, data, 10, MSG_NOSIGNAL)));
    tell();
}

static void linger_server(int fd) {
    struct linger now = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
    tell();
    await();
}

static void linger_client(int fd) {
    await();
    ended(fd);
    say("read: %s", outcome(recv(fd, data, 10, 0)));
    say("write: %s", outcome(send(fd, data, 10, MSG_NOSIGNAL)));
    tell();
}

/* -- a close right behind a large write loses nothing -- */
static void goodbye_server(int fd) {
    uint64_t seed = 5;
    rng_fill(&seed, data, sizeof data);
    send_all(fd, data, sizeof data);
    close(fd);
}

static void goodbye_client(int fd) {
    uint64_t hash;
    usleep(50000); /* lets the server fill what it can before anything is read */
    say("all: %s", outcome(drain(fd, &hash)));
    say("hash %016lx", hash);
}

/* -- SO_RCVTIMEO and SO_SNDTIMEO -- */
static void timeouts_server(int fd) {
    await();
    send_all(fd, data, 100);
    tell();
    await();
    usleep(300000); /* longer than the time would be if it were cut to 64 bits */
    send_all(fd, data, 10);
    await();
    uint64_t hash;
    say("all: %d", drain(fd, &hash) > 100000);
}

static void timeouts_client(int fd) {
    struct timeval limit = {0, 150000}, none = {0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int64_t began = now_ms();
    say("recv: %s", outcome(recv(fd, data, 10, 0)));
    int64_t took = now_ms() - began;
    say("waited well: %d", took >= 145 && took < 3000);
    tell();
    await();
    say("recv: %s", outcome(recv(fd, data, 60, MSG_WAITALL)));
    say("cut by the time: %s", outcome(recv(fd, data, 60, MSG_WAITALL)));
    /* As nanoseconds more than 64 bits hold. */
    limit = (struct timeval){18446744074, 0};
    say("long: %s", outcome(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit)));
    tell();
    say("recv: %s", outcome(recv(fd, data, 10, 0)));
    limit = (struct timeval){0, 150000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    ssize_t sent;
    while ((sent = send(fd, data, 100000, MSG_NOSIGNAL)) > 0) {}
    say("send: %s", outcome(sent));
    tell();
}

/* -- signals: EINTR without SA_RESTART, a restart with it, EINTR again with a timeout -- */
static volatile sig_atomic_t alarms;
static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

static void say_alarms(const char *what, long result) {
    say("%s: %s alarms %d", what, outcome(result), alarms);
}

static void alarm_in_100ms(int flags) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 0}, {0, 100000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    alarms = 0;
}

static void signals_server(int fd) {
    char byte;
    await();
    usleep(300000); /* longer than the client's alarm: the bytes come after its signal */
    send_all(fd, data, 10);
    recv_all(fd, &byte, 1);
    say("done with it");
}

static void signals_client(int fd) {
    struct pollfd readable = {fd, POLLIN, 0};
    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    alarm_in_100ms(0);
    say_alarms("recv", recv(fd, data, 10, 0));
    alarm_in_100ms(0);
    say_alarms("read", read(fd, data, 10));
    alarm_in_100ms(SA_RESTART);
    say_alarms("poll", poll(&readable, 1, 5000));
    alarm_in_100ms(SA_RESTART);
    say_alarms("epoll_wait", epoll_wait(set, &event, 1, 5000));
    struct timeval limit = {5, 0}, none = {0, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    alarm_in_100ms(SA_RESTART);
    say_alarms("recv with a timeout", recv(fd, data, 10, 0));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    tell();
    alarm_in_100ms(SA_RESTART);
    say_alarms("restarted", recv(fd, data, 10, 0));
    send_all(fd, "!", 1);
}

/* -- a blocked send: interrupted before and after its first byte -- */
static void sendsignal_server(int fd) {
    uint64_t hash, sent;
    await();
    ssize_t total = drain(fd, &hash);
    if (read(wait_fd, &sent, sizeof sent) != sizeof sent) die("count");
    say("every byte that a send returned: %d", (uint64_t)total == sent);
}

static void sendsignal_client(int fd) {
    uint64_t sent = 0;
    ssize_t count;
    while ((count = send(fd, data, 1000, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) sent += count;
    do { /* how much is still taken differs; in the end a send blocks, and the signal ends that */
        alarm_in_100ms(0);
        count = send(fd, data, 1000, MSG_NOSIGNAL);
        if (count > 0) sent += count;
    } while (count > 0);
    say_alarms("full", count);
    tell();
    shutdown(fd, SHUT_WR);
    if (write(tell_fd, &sent, sizeof sent) != sizeof sent) die("count");
}

/* -- a reset behind a message that the same call has read: the next call gets it, of whichever kind, in whichever process -- */
enum reader { ITSELF, AGAIN, HEIR, ELDER };

static long messages(int fd) {
    static char got[2][10];
    static struct iovec parts[2] = {{got[0], 5}, {got[1], 5}};
    struct mmsghdr both[2] = {{{.msg_iov = parts, .msg_iovlen = 1}, 0}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 0}};
    return recvmmsg(fd, both, 2, 0, NULL);
}

static void reads_messages(int fd, enum reader next) {
    char byte;
    int go[2], status;
    pid_t self = getpid(), child = 0;
    if (pipe(go)) die("pipe");
    if (next == ELDER) child = fork();
    if (getpid() == self) {
        if (write(tell_fd, &self, sizeof self) != sizeof self) die("pid");
        say("messages: %s", outcome(messages(fd)));
        if (next == HEIR) child = fork();
    }
    if (getpid() != self) {
        if (read(go[0], &byte, 1) != 1) die("read");
        say("the child: %s", outcome(next == ELDER ? messages(fd) : recv(fd, &byte, 1, 0)));
        exit(0);
    }
    if (child) {
        if (write(go[1], "!", 1) != 1) die("write");
        expect(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
    } else {
        say("then: %s", outcome(next == AGAIN ? messages(fd) : recv(fd, &byte, 1, 0)));
    }
    say("then: %s", outcome(recv(fd, &byte, 1, 0)));
}

static void messages_server(int fd) { reads_messages(fd, ITSELF); }
static void again_server(int fd) { reads_messages(fd, AGAIN); }
static void heir_server(int fd) { reads_messages(fd, HEIR); }
static void elder_server(int fd) { reads_messages(fd, ELDER); }

static void messages_client(int fd) {
    struct linger now = {1, 0};
    pid_t reader;
    if (read(wait_fd, &reader, sizeof reader) != sizeof reader) die("pid");
    send_all(fd, "hello", 5);
    await_sleep(reader, reader); /* in its call, for the second one */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static const struct bed_case cases[] = {
    {"halfclose", halfclose_server, halfclose_client}, {"shutdowns", shutdowns_server, shutdowns_client},
    {"pipe", pipe_server, pipe_client},                {"unread", unread_server, unread_client},
    {"linger", linger_server, linger_client},          {"goodbye", goodbye_server, goodbye_client},
    {"timeouts", timeouts_server, timeouts_client},    {"signals", signals_server, signals_client},
    {"sendsignal", sendsignal_server, sendsignal_client}, {"messages", messages_server, messages_client},
    {"again", again_server, messages_client},          {"heir", heir_server, messages_client},
    {"elder", elder_server, messages_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
