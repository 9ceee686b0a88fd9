/* Each call that looks at a connection or moves its bytes, interrupted again and again by a handler that does the same: what the
 * call holds, the handler must never have to wait for.
 *   interrupted server|client calls|once PORT      once: the handler is installed for one time, and installs itself again */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <linux/sockios.h>
#include <sys/time.h>

enum { ROUNDS = 300, EVERY_US = 100 };

static int fd, epfd;
static volatile sig_atomic_t handled;

static void ask(unsigned long what) {
    int bytes;
    ioctl(fd, what, &bytes);
}

static void set(int name, int value) {
    setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value);
}

static void sends(void) { send(fd, "s", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }
static void sends_more(void) { send(fd, "m", 1, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE); }
static void sends_many(void) { static char many[20000]; send(fd, many, sizeof many, MSG_DONTWAIT | MSG_NOSIGNAL); }
static void receives(void) { char some[64]; recv(fd, some, sizeof some, MSG_DONTWAIT); }
static void receives_many(void) { static char many[20000]; recv(fd, many, sizeof many, MSG_DONTWAIT); }
static void peeks(void) { char some[64]; recv(fd, some, sizeof some, MSG_DONTWAIT | MSG_PEEK); }
static void asks_readable(void) { ask(FIONREAD); }
static void asks_unread(void) { ask(SIOCOUTQ); }
static void asks_unsent(void) { ask(SIOCOUTQNSD); }
static void corks(void) { set(TCP_CORK, 1); set(TCP_CORK, 0); }
static void pushes(void) { set(TCP_NODELAY, 1); }
static void polls(void) { struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT}; poll(&one, 1, 0); }
static void waits(void) { struct epoll_event event; epoll_wait(epfd, &event, 1, 0); }
static void changes(void) { struct epoll_event event = {.events = EPOLLIN | EPOLLOUT}; epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &event); }
static void dups(void) { int other = dup(fd); if (other >= 0) close(other); }

static const struct { const char *name; void (*make)(void); } calls[] = {
    {"send", sends}, {"send more", sends_more}, {"send many", sends_many}, {"recv", receives}, {"recv many", receives_many},
    {"peek", peeks}, {"FIONREAD", asks_readable}, {"SIOCOUTQ", asks_unread}, {"SIOCOUTQNSD", asks_unsent}, {"TCP_CORK", corks},
    {"TCP_NODELAY", pushes}, {"poll", polls}, {"epoll_wait", waits}, {"epoll_ctl", changes}, {"dup", dups},
};
enum { CALLS = sizeof calls / sizeof *calls };

/* Every call, in turn. */
static void handler(int signal) {
    (void)signal;
    calls[handled++ % CALLS].make();
}

static const struct itimerval next = {{0, 0}, {0, EVERY_US}};

static void once_handler(int signal) {
    struct sigaction action = {.sa_handler = once_handler, .sa_flags = SA_RESETHAND};
    sigaction(signal, &action, NULL);
    handler(signal);
    /* Not before: who comes while nothing is installed ends the program. */
    setitimer(ITIMER_REAL, &next, NULL);
}

static void interrupted(int connection, struct sigaction action) {
    struct itimerval every = {{0, EVERY_US}, {0, EVERY_US}}, off = {{0, 0}, {0, 0}};
    if (action.sa_flags & SA_RESETHAND) every = next;
    fd = connection;
    epfd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < CALLS; i++) {
        for (handled = 0; handled < ROUNDS;) calls[i].make();
        say("%s", calls[i].name);
    }
    setitimer(ITIMER_REAL, &off, NULL);
    set(TCP_CORK, 0);
    shutdown(fd, SHUT_WR);
    char rest[4096];
    while (recv(fd, rest, sizeof rest, 0) > 0) {}
}

static void calls_client(int connection) {
    interrupted(connection, (struct sigaction){.sa_handler = handler});
}

static void once_client(int connection) {
    interrupted(connection, (struct sigaction){.sa_handler = once_handler, .sa_flags = SA_RESETHAND});
}

/* Gives back a tenth of what comes, so that neither end ever waits for the other. */
static void calls_server(int connection) {
    static char some[65536];
    ssize_t got;
    while ((got = recv(connection, some, sizeof some, 0)) > 0) send(connection, some, (got + 9) / 10, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int main(int argc, char **argv) {
    static const struct bed_case cases[] = {{"calls", calls_server, calls_client}, {"once", calls_server, once_client}, {NULL, NULL, NULL}};
    return run_case(argc, argv, cases);
}
