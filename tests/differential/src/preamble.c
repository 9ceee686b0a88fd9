/* Made by the differential tester. Two processes have connections with each other and make one call at a time, in turn.
 *   cc -o program program.c -pthread && ./program          on TCP
 *   shunpike run ./program                                 on lanes: what it prints must be the same */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLIENT, SERVER };
static int side, listener, port, fds[8], registered[8], set = -1, turns[2][2];
static unsigned char bytes[1 << 17];

static void tell(const char *call, long result) {
    int error = result < 0 ? errno : 0;
    printf("%s %s: %ld%s%s", side == CLIENT ? "client" : "server", call, result, error ? " " : "", error ? strerrorname_np(error) : "");
}
static void line(void) { putchar('\n'); fflush(stdout); }

static void opened(int at, int fd, int nonblock, int nagle) {
    int on = !nagle;
    fds[at] = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (nonblock) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}
static void opens(int at, int nonblock, int nagle) {
    if (side == CLIENT) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to)) exit(70);
        opened(at, fd, nonblock, nagle);
    } else opened(at, accept(listener, NULL, NULL), nonblock, nagle);
}
static void wait_for(int fd, int events) { struct pollfd one = {.fd = fd, .events = events}; poll(&one, 1, 5000); }
static void all_out(int fd, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t some = send(fd, bytes, n - done, MSG_NOSIGNAL);
        if (some > 0) done += some;
        else if (errno == EAGAIN) wait_for(fd, POLLOUT);
        else return;
    }
}
static void all_in(int fd, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t some = recv(fd, bytes, n - done, 0);
        if (some > 0) done += some;
        else if (some < 0 && errno == EAGAIN) wait_for(fd, POLLIN);
        else return;
    }
}
static void echo(int at, int rounds, size_t n, int asks) {
    for (int i = 0; i < rounds; i++) {
        if (asks) all_out(fds[at], n);
        all_in(fds[at], n);
        if (!asks) all_out(fds[at], n);
    }
}
static void sends(int at, size_t n) { tell("send", send(fds[at], bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT)); line(); }
static void receives(int at, size_t n, int flags) {
    long have = 0, some;
    do some = recv(fds[at], bytes, n - have, flags | (have ? MSG_DONTWAIT : 0));
    while (some > 0 && (have += some) < (long)n && !(flags & (MSG_PEEK | MSG_TRUNC)));
    tell(flags & MSG_PEEK ? "peek" : "recv", have ? have : some);
    line();
}
static void readable(int at) { int n = -1; tell("FIONREAD", ioctl(fds[at], FIONREAD, &n)); printf(" %d", n); line(); }
static void polls(int at, int events) { struct pollfd one = {.fd = fds[at], .events = events}; tell("poll", poll(&one, 1, 0)); printf(" %#x", one.revents); line(); }
static void set_shows(void) {
    struct epoll_event all[16];
    int n = epoll_wait(set, all, 16, 0);
    tell("epoll_wait", n);
    for (int i = 0; i < n; i++) printf(" %#lx:%#x", (long)all[i].data.u64, all[i].events);
    line();
}
static void registers(int at, unsigned events) {
    struct epoll_event event = {.events = events, .data.u64 = 0x5000 + at};
    int op = !events ? EPOLL_CTL_DEL : registered[at] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    long rc = epoll_ctl(set, op, fds[at], &event);
    if (!rc) registered[at] = events != 0;
    tell("epoll_ctl", rc);
    line();
}
static void option(int at, int level, int name, int value) { tell("setsockopt", setsockopt(fds[at], level, name, &value, sizeof value)); line(); }
static struct waiting { pthread_t thread; int fd, raw; } waiting[2][8];
static void *waits(void *argument) {
    struct waiting *w = argument;
    struct pollfd one = {.fd = w->fd, .events = POLLIN};
    if (w->raw) {
        long result, number = SYS_poll;
        __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(&one), "S"(1L), "d"(5000L) : "rcx", "r11", "memory");
        return (void *)result;
    }
    return (void *)(long)poll(&one, 1, 5000);
}
static void begins(int at, int raw) {
    struct waiting *w = &waiting[side][at];
    w->fd = fds[at], w->raw = raw;
    pthread_create(&w->thread, NULL, waits, w);
}
static void ends(int at) { void *result; pthread_join(waiting[side][at].thread, &result); tell("a wait", (long)result); line(); }

static void program(void);
/* Only one process runs at a time. */
static void turn(int whose) {
    char token;
    static int now = CLIENT;
    if (now == whose) return;
    if (side == now && write(turns[whose][1], "t", 1) != 1) exit(70);
    if (side == whose && read(turns[whose][0], &token, 1) != 1) exit(70);
    now = whose;
}
int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    signal(SIGPIPE, SIG_IGN);
    alarm(20);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 16) || getsockname(listener, (struct sockaddr *)&at, &len)) return 70;
    port = ntohs(at.sin_port);
    if (pipe(turns[0]) || pipe(turns[1])) return 70;
    pid_t child = fork();
    side = child ? CLIENT : SERVER;
    set = epoll_create1(0);
    program();
    turn(CLIENT);
    if (child) waitpid(child, NULL, 0);
    return 0;
}
