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
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
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
        ssize_t some = recv(fd, bytes, n - done < sizeof bytes ? n - done : sizeof bytes, 0);
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
/* Messages of two parts; a reader waits for edges, and takes a short read for the last one, or waits by system calls of its own. */
static void exchange(int at, int rounds, size_t n, int asks, int raw) {
    static unsigned char some[1 << 14];
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int edges = epoll_create1(0), ready = raw;
    epoll_ctl(edges, EPOLL_CTL_ADD, fds[at], &event);
    for (int i = 0; i < 2 * rounds; i++) {
        if ((i % 2 == 0) == asks) {
            size_t header = n / 8 ? n / 8 : 1;
            all_out(fds[at], header);
            all_out(fds[at], n - header);
            continue;
        }
        for (size_t have = 0; have < n;) {
            struct pollfd one = {.fd = fds[at], .events = POLLIN};
            if (!ready && raw) {
                long result, number = SYS_poll;
                __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(&one), "S"(1L), "d"(4000L) : "rcx", "r11", "memory");
                if (result <= 0) { tell("a wait", 0), line(); goto out; }
            } else if (!ready && epoll_wait(edges, &event, 1, 4000) <= 0) { tell("a wait", 0), line(); goto out; }
            ssize_t got = recv(fds[at], some, sizeof some, MSG_DONTWAIT);
            ready = got == sizeof some;
            if (got > 0) have += got;
            else if (!got || errno != EAGAIN) goto out;
        }
    }
out:
    close(edges);
}
static int amounts[2];
static void turn(int whose);
/* Until no more is taken; when seven eighths have been read there must be room. */
static void flood(int at, int whose, size_t chunk) {
    static size_t all;
    struct pollfd one = {.fd = fds[at], .events = POLLOUT};
    ssize_t some;
    turn(whose);
    if (side == whose) {
        for (all = 0; (some = send(fds[at], bytes, chunk, MSG_NOSIGNAL | MSG_DONTWAIT)) > 0;) all += some;
        if (write(amounts[1], &all, sizeof all) != sizeof all) exit(70);
    }
    turn(!whose);
    if (side != whose) {
        if (read(amounts[0], &all, sizeof all) != sizeof all) exit(70);
        all_in(fds[at], all - all / 8);
    }
    turn(whose);
    if (side == whose) tell("room", poll(&one, 1, 3000)), line();
    turn(!whose);
    if (side != whose) all_in(fds[at], all / 8);
}
static void sends(int at, size_t n, int flags) { tell("send", send(fds[at], bytes, n, flags | MSG_NOSIGNAL | MSG_DONTWAIT)); line(); }
static void receives(int at, size_t n, int flags) {
    long have = 0, some;
    do some = recv(fds[at], bytes, n - have, flags | (have ? MSG_DONTWAIT : 0));
    while (some > 0 && (have += some) < (long)n && !(flags & (MSG_PEEK | MSG_TRUNC)));
    tell(flags & MSG_PEEK ? "peek" : "recv", have ? have : some);
    line();
}
static void receives_once(int at, size_t n) { tell("recv", recv(fds[at], bytes, n, MSG_DONTWAIT)); line(); }
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

static void waits_for(int at, int ms) { struct pollfd one = {.fd = fds[at], .events = POLLIN}; tell("poll", poll(&one, 1, ms)); printf(" %#x", one.revents); line(); }
static void nothing(int signal) { (void)signal; }
static void alarmed(int at) {
    struct sigaction action = {.sa_handler = nothing};
    struct itimerval soon = {.it_value.tv_usec = 5000, .it_interval.tv_usec = 5000}, never = {0};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    waits_for(at, 5000);
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_DFL), alarm(20);
}
static void passes(int at) {
    int pair[2], other;
    char byte = 0, control[CMSG_SPACE(sizeof other)] __attribute__((aligned(8))) = {0};
    struct iovec part = {&byte, 1};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *one = CMSG_FIRSTHDR(&header);
    struct epoll_event none = {0};
    if (registered[at]) epoll_ctl(set, EPOLL_CTL_DEL, fds[at], &none), registered[at] = 0;
    one->cmsg_level = SOL_SOCKET, one->cmsg_type = SCM_RIGHTS, one->cmsg_len = CMSG_LEN(sizeof other);
    memcpy(CMSG_DATA(one), &fds[at], sizeof other);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &header, 0) != 1 || recvmsg(pair[1], &header, 0) != 1) exit(70);
    memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof other);
    close(fds[at]), close(pair[0]), close(pair[1]);
    fds[at] = other;
}

static pid_t peer;
static void signals(int signal) { kill(peer, signal); usleep(20000); }

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
    if (pipe(turns[0]) || pipe(turns[1]) || pipe(amounts)) return 70;
    pid_t child = fork();
    side = child ? CLIENT : SERVER;
    peer = child ? child : getppid();
    set = epoll_create1(0);
    program();
    turn(CLIENT);
    int status = 0;
    if (child) waitpid(child, &status, 0);
    return status != 0;
}
