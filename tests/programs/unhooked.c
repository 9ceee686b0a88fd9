/* What libc does with a descriptor inside itself, what happens at a program's end, and what a thread is cancelled in.
 *   unhooked server|client CASE PORT */
#include "bed.h"
#include <aio.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <utmp.h>

static unsigned char data[100000];

static void send_seeded(int fd, uint64_t seed, size_t count) {
    rng_fill(&seed, data, count);
    send_all(fd, data, count);
}

static void say_next(int fd, size_t count) {
    recv_all(fd, data, count);
    say("%zu bytes: %016lx", count, hash_more(HASH_START, data, count));
}

/* -- aio_*: libc's own threads read and write -- */
static ssize_t result_of(struct aiocb *job) {
    const struct aiocb *jobs[] = {job};
    while (aio_error(job) == EINPROGRESS) aio_suspend(jobs, 1, NULL);
    if (aio_error(job)) errno = aio_error(job);
    return aio_return(job);
}

static void aio_client(int fd) {
    unsigned char in[3000];
    uint64_t seed = 2;
    struct aiocb reads = {.aio_fildes = fd, .aio_buf = in, .aio_nbytes = 1000};
    await();
    say("read 100: %s", outcome(recv(fd, in, 100, MSG_WAITALL)));
    expect(aio_read(&reads) == 0, "aio_read");
    ssize_t got = result_of(&reads);
    expect(got > 0, "aio_read brings bytes");
    uint64_t hash = hash_more(HASH_START, in, got);
    for (ssize_t more; got < 3000 - 100; got += more) {
        more = recv(fd, in, 3000 - 100 - got, 0);
        expect(more > 0, "the rest comes");
        hash = hash_more(hash, in, more);
    }
    say("the rest: %016lx", hash);
    rng_fill(&seed, data, 500);
    struct aiocb writes = {.aio_fildes = fd, .aio_buf = data, .aio_nbytes = 200};
    expect(aio_write(&writes) == 0, "aio_write");
    say("written: %s", outcome(result_of(&writes)));
    struct aiocb more = {.aio_fildes = fd, .aio_buf = data + 200, .aio_nbytes = 300, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[] = {&more};
    say("list: %s", outcome(lio_listio(LIO_WAIT, list, 1, NULL)));
    say("bad: %s", outcome(lio_listio(77, list, 1, NULL)));
    tell();
}

static void aio_server(int fd) {
    send_seeded(fd, 1, 3000);
    tell();
    say_next(fd, 500);
    await();
}

/* -- login_tty: fails on a socket, and leaves it as it was -- */
static void login_client(int fd) {
    await();
    pid_t child = fork();
    if (child == 0) _exit(login_tty(fd) ? 1 : 0);
    int status;
    waitpid(child, &status, 0);
    say("login_tty: %d", WEXITSTATUS(status));
    say_next(fd, 1000);
    shutdown(fd, SHUT_WR);
}

/* It waits in a call on the connection: what the other end wants back goes out there (COMPLIANCE.md). */
static void thousand_server(int fd) {
    char byte;
    send_seeded(fd, 3, 1000);
    tell();
    say("the end: %s", outcome(recv(fd, &byte, 1, 0)));
}

/* -- freopen and fclose close inside libc: the number is something else then -- */
static void reopened_client(int fd) {
    char text[64] = "";
    await();
    FILE *stream = fdopen(fd, "r");
    say("first: %d", fgetc(stream));
    stream = freopen("/proc/self/comm", "r", stream);
    expect(stream != NULL && fileno(stream) == fd, "the same number");
    say("now: %s", fgets(text, sizeof text, stream) ? text : "nothing");
    say("read: %s, send: %s", outcome(read(fd, text, 10)), outcome(send(fd, "x", 1, MSG_NOSIGNAL)));
    fclose(stream);
    say("closed: %s %s", outcome(read(fd, text, 1)), outcome(fcntl(fd, F_GETFD)));
    int ends[2];
    expect(pipe(ends) == 0 && (ends[0] == fd || ends[1] == fd), "the number is used again");
    say("pipe: %s", outcome(write(ends[1], "hello", 5)));
    struct pollfd readable = {ends[0], POLLIN, 0};
    say("poll: %s %x", outcome(poll(&readable, 1, 1000)), readable.revents);
    struct epoll_event event = {EPOLLIN, {.fd = ends[0]}};
    int set = epoll_create1(0);
    say("epoll: %s %s", outcome(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event)), outcome(epoll_wait(set, &event, 1, 1000)));
    say("read: %s", outcome(read(ends[0], text, 10)));
    tell();
}

static void reopened_server(int fd) {
    char byte;
    send_seeded(fd, 3, 1000);
    tell();
    say("its end: %s", outcome(recv(fd, &byte, 1, 0)));
    await();
}

/* -- a program that ends with bytes unread resets its peer; one that has read them does not -- */
static void exits_unread_client(int fd) {
    await();
    struct pollfd readable = {fd, POLLIN, 0};
    expect(poll(&readable, 1, 10000) == 1, "bytes arrive");
    say("unread");
    exit(0);
}

static void exits_read_client(int fd) {
    await();
    say_next(fd, 1000);
    send_seeded(fd, 9, 20000);
    exit(0);
}

static void exits_server(int fd) {
    struct pollfd over = {fd, POLLRDHUP, 0};
    send_seeded(fd, 3, 1000);
    tell();
    expect(poll(&over, 1, 10000) == 1, "the end shows");
    size_t have = 0;
    ssize_t got;
    while ((got = recv(fd, data, sizeof data, 0)) > 0) have += got;
    say("end: %s after %zu", outcome(got), have);
}

/* -- a thread that never has to wait is cancelled all the same -- */
static int busy_fd, how_busy;
static void *never_waits(void *unused) {
    char byte;
    struct epoll_event event = {EPOLLIN, {.fd = busy_fd}};
    struct pollfd readable = {busy_fd, POLLIN, 0};
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(set, EPOLL_CTL_ADD, busy_fd, &event);
    for (;;) {
        if (how_busy == 0) recv(busy_fd, &byte, 1, MSG_PEEK);
        if (how_busy == 1) poll(&readable, 1, -1);
        if (how_busy == 2) epoll_wait(set, &event, 1, -1);
        if (how_busy == 3) send(busy_fd, "", 0, 0);
    }
    return unused;
}

static void busy_client(int fd) {
    busy_fd = fd;
    await();
    for (how_busy = 0; how_busy < 4; how_busy++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, never_waits, NULL);
        usleep(20000); /* most likely in the loop; the result is the same if it is not */
        pthread_cancel(thread);
        pthread_join(thread, &result);
        say("%d cancelled: %d", how_busy, result == PTHREAD_CANCELED);
    }
    say_next(fd, 1000);
    shutdown(fd, SHUT_WR);
}

/* -- children that come, execute something else and go while the lane is being opened, again and again -- */
static void shaking_client(int fd) {
    for (int round = 0; round < 200; round++) {
        pid_t child = round % 3 == 0 ? fork() : -1;
        if (child == 0) {
            if (round % 2) _exit(0);
            fcntl(fd, F_SETFD, FD_CLOEXEC);
            execlp("true", "true", (char *)NULL);
            _exit(70);
        }
        send_seeded(fd, round, 1000);
        recv_all(fd, data, 8);
        if (child > 0) waitpid(child, NULL, 0);
    }
    say("asked");
}

static void shaking_server(int fd) {
    uint64_t seed, hash;
    unsigned char should[1000];
    for (int round = 0; round < 200; round++) {
        recv_all(fd, data, 1000);
        seed = round, rng_fill(&seed, should, sizeof should);
        expect(!memcmp(data, should, sizeof should), "the bytes are those of this round");
        hash = hash_more(HASH_START, data, 1000);
        send_all(fd, &hash, sizeof hash);
    }
    say("answered");
}

static const struct bed_case cases[] = {
    {"aio", aio_server, aio_client},
    {"login", thousand_server, login_client},
    {"reopened", reopened_server, reopened_client},
    {"unread", exits_server, exits_unread_client},
    {"read", exits_server, exits_read_client},
    {"busy", thousand_server, busy_client},
    {"shaking", shaking_server, shaking_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    /* "shaking" comes before the lane: no warming up. */
    if (argc == 4 && !strcmp(argv[2], "shaking")) {
        int port = atoi(argv[3]);
        if (!strcmp(argv[1], "server")) {
            shaking_server(accept_one(listen_on(port)));
        } else {
            int fd = connect_to(port);
            shaking_client(fd);
        }
        return 0;
    }
    return run_case(argc, argv, cases);
}
