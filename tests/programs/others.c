/* A thread waits in a call on the connection, and another thread takes the descriptor away; thousands of descriptors.
 *   others server|client CASE PORT */
#include "bed.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

static unsigned char data[4096];

static int shared_fd;
static pid_t waiter;
static char first_error[32];
static void *waits(void *unused) {
    __atomic_store_n(&waiter, gettid(), __ATOMIC_SEQ_CST);
    ssize_t got = recv(shared_fd, data, 100, 0);
    snprintf(first_error, sizeof first_error, "%s", outcome(got));
    return unused;
}

static void on_signal(int signal) { (void)signal; }

/* Until the thread sleeps, which it does in recv() only. */
static void until_it_waits(void) {
    char path[64], text[256];
    for (;; usleep(1000)) {
        pid_t thread = __atomic_load_n(&waiter, __ATOMIC_SEQ_CST);
        if (thread == 0) continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
        FILE *file = fopen(path, "r");
        char *state = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        int asleep = state && state[2] == 'S';
        fclose(file);
        if (asleep) return;
    }
}

/* The kernel keeps the socket for the thread that waits: it gets what comes, and then the connection ends. */
static void taken_away(int fd, void (*take)(int fd)) {
    pthread_t thread;
    shared_fd = fd;
    pthread_create(&thread, NULL, waits, NULL);
    until_it_waits();
    take(fd);
    tell();
    pthread_join(thread, NULL);
    say("the waiting thread: %s", first_error);
}

static void takes_by_close(int fd) { close(fd); }
static void takes_by_dup2(int fd) {
    int null = open("/dev/null", O_RDWR);
    if (dup2(null, fd) != fd) die("dup2");
}

static void closed_server(int fd) { taken_away(fd, takes_by_close); }
static void replaced_server(int fd) {
    taken_away(fd, takes_by_dup2);
    say("the number: %s", outcome(read(fd, data, 10)));
}

static void sends_client(int fd) {
    await();
    say("sent: %s", outcome(send(fd, "0123456789", 10, MSG_NOSIGNAL)));
    say("the end: %d", recv(fd, data, 1, 0) <= 0);
}

/* As the JDK closes: the number is made something else, and a signal gets the thread out. */
static void signalled_server(int fd) {
    struct sigaction action = {.sa_handler = on_signal};
    pthread_t thread;
    sigaction(SIGUSR1, &action, NULL);
    shared_fd = fd;
    pthread_create(&thread, NULL, waits, NULL);
    until_it_waits();
    takes_by_dup2(fd);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    say("the waiting thread: %s", first_error);
    tell();
}

static void sees_end_client(int fd) {
    await();
    say("the end: %s", outcome(recv(fd, data, 1, 0)));
}

/* -- a descriptor above a thousand, and thousands of them, in select, poll and epoll -- */
#define MANY 10000
static void many_client(int fd) {
    struct rlimit limit;
    static struct pollfd all[MANY];
    static struct {
        fd_set first;
        unsigned char rest[4096];
    } sets;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < MANY + 200 ? limit.rlim_max : MANY + 200;
    setrlimit(RLIMIT_NOFILE, &limit);
    int many = limit.rlim_cur < MANY + 200 ? (int)limit.rlim_cur - 200 : MANY, ends[2];
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 5000 < many ? 5000 : many / 2);
    expect(high > FD_SETSIZE && pipe(ends) == 0, "there is room for many descriptors");
    close(fd);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = high}};
    epoll_ctl(set, EPOLL_CTL_ADD, high, &event);
    for (int i = 0; i < many; i++) {
        all[i] = (struct pollfd){i % 100 ? -1 : ends[0], POLLIN, 0};
    }
    all[many / 2].fd = high;
    for (int i = 200; i < many - 200; i++) {
        int copy = i == high ? -1 : dup2(ends[0], i);
        if (copy >= 0 && i % 10 == 0) {
            struct epoll_event quiet = {EPOLLIN, {.fd = i}};
            epoll_ctl(set, EPOLL_CTL_ADD, i, &quiet);
        }
    }
    send_all(high, "x", 1);
    say("poll: %s", outcome(poll(all, many, 10000)));
    say("its events: %x", all[many / 2].revents);
    say("epoll: %s", outcome(epoll_wait(set, &event, 1, 10000)));
    say("of the right one: %d", event.data.fd == high);
    unsigned char *bits = (unsigned char *)&sets;
    bits[high / 8] |= 1 << (high % 8);
    say("select: %s", outcome(select(high + 1, (fd_set *)bits, NULL, NULL, &(struct timeval){10, 0})));
    say("its bit: %d", bits[high / 8] == 1 << (high % 8));
    say("read: %s", outcome(recv(high, data, 1, 0)));
    say("nothing: %s %s", outcome(poll(all, many, 0)), outcome(epoll_wait(set, &event, 1, 0)));
    send_all(high, "e", 1);
}

static void many_server(int fd) {
    for (char byte = 0; byte != 'e';) {
        recv_all(fd, &byte, 1);
        if (byte != 'e') send_all(fd, &byte, 1);
    }
    say("echoed");
}

static const struct bed_case cases[] = {
    {"closed", closed_server, sends_client},       {"replaced", replaced_server, sends_client},
    {"signalled", signalled_server, sees_end_client}, {"many", many_server, many_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) { return run_case(argc, argv, cases); }
