/* Bad input: pointers to nowhere, absurd counts and sizes, descriptors that are none. The kernel answers all of it.
 *   badinput server|client CASE PORT */
#include "bed.h"
#include <limits.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <linux/sockios.h>

/* What compilers warn of is what is tested here. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Winfinite-recursion"

#define PAGE 4096
static unsigned char data[1 << 20];
static int is_bad_fd; /* an open descriptor that is no socket */

/* The last byte of a page behind which nothing may be touched (a hole would be filled by the next mapping). */
static unsigned char *edge(void) {
    static unsigned char *at;
    if (!at) {
        at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || mprotect(at + PAGE, PAGE, PROT_NONE)) die("mmap");
    }
    return at + PAGE - 1;
}

static unsigned char *read_only(void) {
    unsigned char *at = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

/* Mapped, but behind the end of its file: SIGBUS. */
static unsigned char *past_the_end(void) {
    FILE *file = tmpfile();
    unsigned char *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

static void say_rest(int fd, size_t count) {
    recv_all(fd, data, count);
    say("all there: %016lx", hash_more(HASH_START, data, count));
}

static void send_seeded(int fd, uint64_t seed, size_t count) {
    rng_fill(&seed, data, count);
    send_all(fd, data, count);
}

/* -- reading to nowhere: EFAULT, and no byte is lost -- */
static void reads_server(int fd) {
    send_seeded(fd, 1, 1000);
    tell();
    await();
}

static void reads_client(int fd) {
    unsigned char *bad[] = {NULL, edge() + 1, read_only(), past_the_end(), (void *)(1ul << 62), (void *)-4096l};
    struct iovec second[2] = {{data, 10}, {edge() + 1, 10}};
    await();
    struct pollfd readable = {fd, POLLIN, 0};
    expect(poll(&readable, 1, 10000) == 1, "bytes arrive");
    for (int i = 0; i < 6; i++) {
        struct iovec one = {bad[i], 100};
        struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
        say("%d read: %s", i, outcome(read(fd, bad[i], 100)));
        say("%d recv: %s", i, outcome(recv(fd, bad[i], 100, 0)));
        say("%d peek: %s", i, outcome(recv(fd, bad[i], 100, MSG_PEEK)));
        say("%d recvfrom: %s", i, outcome(recvfrom(fd, bad[i], 100, 0, NULL, NULL)));
        say("%d readv: %s", i, outcome(readv(fd, &one, 1)));
        say("%d recvmsg: %s", i, outcome(recvmsg(fd, &message, 0)));
    }
    say("in a later buffer: %s", outcome(readv(fd, second, 2)));
    say("over the edge: %s", outcome(recv(fd, edge(), 2, 0)));
    say("up to the edge: %s", outcome(recv(fd, edge(), 1, MSG_PEEK)));
    say("nothing wanted: %s", outcome(read(fd, NULL, 0)));
    say("dropped: %s", outcome(recv(fd, NULL, 100, MSG_TRUNC)));
    say_rest(fd, 900);
    say("nothing there: %s", outcome(recv(fd, NULL, 100, MSG_DONTWAIT)));
    tell();
}

/* -- writing from nowhere: EFAULT, or what is whole before it -- */
static void writes_server(int fd) {
    uint64_t hash, sent, should;
    await();
    if (read(wait_fd, &sent, sizeof sent) != sizeof sent || read(wait_fd, &should, sizeof should) != sizeof should)
        die("figures");
    size_t left = sent;
    for (hash = HASH_START; left > 0;) {
        ssize_t got = recv(fd, data, left < sizeof data ? left : sizeof data, 0);
        if (got <= 0) die("recv");
        hash = hash_more(hash, data, got), left -= got;
    }
    say("what it was told: %d", hash == should);
    say("and no more: %s", outcome(recv(fd, data, 1, 0)));
}

static void writes_client(int fd) {
    unsigned char *bad[] = {NULL, edge() + 1, past_the_end(), (void *)(1ul << 62), (void *)-4096l};
    for (int i = 0; i < 5; i++) {
        struct iovec one = {bad[i], 100};
        struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
        say("%d write: %s", i, outcome(write(fd, bad[i], 100)));
        say("%d send: %s", i, outcome(send(fd, bad[i], 100, 0)));
        say("%d sendto: %s", i, outcome(sendto(fd, bad[i], 100, 0, NULL, 0)));
        say("%d writev: %s", i, outcome(writev(fd, &one, 1)));
        say("%d sendmsg: %s", i, outcome(sendmsg(fd, &message, 0)));
    }
    /* A megabyte whose last part is missing: the beginning may go, at the sender's own cut. */
    unsigned char *large = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (large == MAP_FAILED || mprotect(large + (1 << 19), 1 << 19, PROT_NONE)) die("mmap");
    uint64_t seed = 7, sent = 0, hash = HASH_START;
    rng_fill(&seed, large, 1 << 19);
    tell();
    ssize_t count = send(fd, large, 1 << 20, 0);
    expect(count > 0 && count <= 1 << 19, "the beginning goes");
    hash = hash_more(hash, large, count), sent = count;
    if (write(tell_fd, &sent, sizeof sent) < 0 || write(tell_fd, &hash, sizeof hash) < 0) die("figures");
    say("the rest: %s", outcome(send(fd, large + (1 << 19), 100, 0)));
    shutdown(fd, SHUT_WR);
}

/* -- vectors and messages that are none -- */
static void vectors_server(int fd) {
    send_seeded(fd, 3, 500);
    tell();
    say_rest(fd, 20);
}

static void vectors_client(int fd) {
    struct iovec good = {data, 10}, *bad = (void *)(edge() + 1), *across = (void *)((uintptr_t)edge() - 15);
    struct iovec negative = {data, SIZE_MAX}, empty[2] = {{data, 0}, {NULL, 0}}, sum[2] = {{data, SSIZE_MAX}, {data, 5}};
    static struct iovec many[1025];
    for (int i = 0; i < 1025; i++) many[i] = (struct iovec){data, 0};
    await();
    say("null: %s %s", outcome(readv(fd, NULL, 1)), outcome(writev(fd, NULL, 1)));
    say("null and 0: %s %s", outcome(readv(fd, NULL, 0)), outcome(writev(fd, NULL, 0)));
    say("unmapped: %s %s", outcome(readv(fd, bad, 1)), outcome(writev(fd, bad, 1)));
    *across = good;
    say("half mapped: %s %s", outcome(readv(fd, across, 2)), outcome(writev(fd, across, 2)));
    say("negative: %s %s", outcome(readv(fd, &good, -1)), outcome(writev(fd, &good, -1)));
    say("1025: %s %s", outcome(readv(fd, many, 1025)), outcome(writev(fd, many, 1025)));
    say("1024, empty: %s %s", outcome(readv(fd, many, 1024)), outcome(writev(fd, many, 1024)));
    say("2, empty: %s %s", outcome(readv(fd, empty, 2)), outcome(writev(fd, empty, 2)));
    say("a huge entry: %s %s", outcome(readv(fd, &negative, 1)), outcome(writev(fd, &negative, 1)));
    say("a huge sum: %s %s", outcome(preadv2(fd, sum, 2, -1, 0)), outcome(pwritev2(fd, sum, 2, -1, 0)));
    say("flags: %s %s", outcome(preadv2(fd, &good, 1, -1, 0x40000000)), outcome(pwritev2(fd, &good, 1, -1, 0x40000000)));
    say("offsets: %s %s", outcome(preadv2(fd, &good, 1, 5, 0)), outcome(pwritev2(fd, &good, 1, 5, 0)));
    say("nowait: %s %s", outcome(preadv2(fd, &good, 1, -1, RWF_NOWAIT)), outcome(pwritev2(fd, &good, 1, -1, RWF_NOWAIT)));
    say("sizes: %s %s", outcome(read(fd, data, SIZE_MAX)), outcome(write(fd, data, SIZE_MAX)));

    struct msghdr message = {.msg_iov = &good, .msg_iovlen = 1}, change;
    say("no message: %s %s", outcome(recvmsg(fd, NULL, 0)), outcome(sendmsg(fd, NULL, 0)));
    say("no message there: %s %s", outcome(recvmsg(fd, (void *)bad, 0)), outcome(sendmsg(fd, (void *)bad, 0)));
    change = message, change.msg_iovlen = 1025;
    say("1025: %s %s", outcome(recvmsg(fd, &change, 0)), outcome(sendmsg(fd, &change, 0)));
    change = message, change.msg_name = data, change.msg_namelen = -1;
    say("name of -1: %s %s", outcome(recvmsg(fd, &change, 0)), outcome(sendmsg(fd, &change, 0)));
    change = message, change.msg_name = bad, change.msg_namelen = 16;
    say("name nowhere: %s", outcome(sendmsg(fd, &change, 0)));
    say("sendto nowhere: %s", outcome(sendto(fd, data, 10, 0, (void *)bad, 16)));
    say("sendto, long: %s", outcome(sendto(fd, data, 10, 0, (void *)data, 129)));
    change = message, change.msg_control = bad, change.msg_controllen = 32;
    say("control nowhere: %s", outcome(sendmsg(fd, &change, 0)));
    socklen_t size = -1;
    say("name of -1, and the bytes are gone: %s", outcome(recvfrom(fd, data, 10, 0, (void *)data, &size)));
    say("size nowhere: %s", outcome(recvfrom(fd, data, 10, 0, (void *)data, (void *)bad)));
    size = 16;
    say("name: %s", outcome(recvfrom(fd, data, 10, 0, (void *)(data + 100), &size)));
    say("its size %u", size);
    change = message, change.msg_namelen = 77, change.msg_controllen = 5, change.msg_flags = -1;
    say("message: %s", outcome(recvmsg(fd, &change, 0)));
    say("namelen %u controllen %zu flags %x", change.msg_namelen, change.msg_controllen, change.msg_flags);
    struct mmsghdr batch[2] = {{message, 0}, {message, 0}};
    batch[1].msg_hdr.msg_iov = bad;
    say("second of a batch: %s %u", outcome(recvmmsg(fd, batch, 2, 0, NULL)), batch[0].msg_len);
    say("no batch: %s %s", outcome(recvmmsg(fd, NULL, 2, 0, NULL)), outcome(sendmmsg(fd, NULL, 2, 0)));
    struct timespec wrong = {0, -1};
    say("its time: %s", outcome(recvmmsg(fd, batch, 1, 0, &wrong)));
    say_rest(fd, 500 - 10 - 50);
    send_seeded(fd, 4, 10);
}

/* -- descriptors that are none, and calls that look at others' memory -- */
static void others_server(int fd) {
    send_seeded(fd, 5, 100);
    tell();
    await();
}

static void others_client(int fd) {
    int numbers[] = {-1, INT_MAX, 1 << 20, is_bad_fd};
    void *bad = edge() + 1;
    struct iovec one = {data, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1};
    await();
    for (int i = 0; i < 4; i++) {
        int none = numbers[i];
        say("%d: %s %s %s %s", i, outcome(recv(none, data, 1, 0)), outcome(send(none, data, 1, 0)),
            outcome(recvmsg(none, &message, 0)), outcome(sendmsg(none, &message, 0)));
        say("%d: %s %s %s %s", i, outcome(shutdown(none, 2)), outcome(accept(none, NULL, NULL)),
            outcome(connect(none, NULL, 0)), outcome(listen(none, 1)));
        if (none == is_bad_fd) continue;
        say("%d: %s %s %s %s", i, outcome(dup(none)), outcome(dup2(none, 100)), outcome(close(none)),
            outcome(fcntl(none, F_GETFL)));
        say("%d: %s %s %s %s", i, outcome(read(none, data, 1)), outcome(writev(none, &one, 1)),
            outcome(sendfile(none, fd, NULL, 1)), outcome(splice(fd, NULL, none, NULL, 1, 0)));
    }
    say("dup2 to nowhere: %s %s", outcome(dup2(fd, -1)), outcome(dup2(fd, INT_MAX)));
    say("dup3 on itself: %s %s", outcome(dup3(fd, fd, 0)), outcome(dup3(fd, 100, 12345)));
    say("close_range, backwards: %s", outcome(close_range(5, 4, 0)));
    say("close_range, flags: %s", outcome(close_range(900, 901, 1 << 20)));
    struct pollfd readable = {fd, POLLIN, 0};
    expect(poll(&readable, 1, 10000) == 1, "bytes arrive");
    say("FIONREAD: %s SIOCOUTQ: %s", outcome(ioctl(fd, FIONREAD, bad)), outcome(ioctl(fd, SIOCOUTQ, NULL)));
    say("FIONBIO: %s unknown: %s", outcome(ioctl(fd, FIONBIO, bad)), outcome(ioctl(fd, 0x12345678, 0)));
    int value = 1;
    socklen_t size = sizeof value;
    say("options: %s %s %s", outcome(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, 1)),
        outcome(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, bad, 4)), outcome(setsockopt(fd, SOL_SOCKET, 9999, &value, 4)));
    say("options: %s %s", outcome(getsockopt(fd, SOL_SOCKET, SO_ERROR, bad, &size)),
        outcome(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, bad)));
    say("poll: %s %s", outcome(poll(bad, 1, 0)), outcome(poll(NULL, 1, 0)));
    say("ppoll: %s", outcome(ppoll(&readable, 1, &(struct timespec){0, -1}, NULL)));

    /* A set of 1024 bits, and a count that goes far beyond: bits behind the process's table are not looked at. */
    struct {
        fd_set set;
        unsigned char behind[1024];
    } sets;
    memset(&sets, 0, sizeof sets);
    memset(sets.behind, 0xa5, sizeof sets.behind);
    FD_SET(fd, &sets.set);
    int ready = select(FD_SETSIZE + 8 * (int)sizeof sets.behind, &sets.set, NULL, NULL, &(struct timeval){5, 0});
    int touched = 0;
    for (size_t i = 0; i < sizeof sets.behind; i++) touched += sets.behind[i] != 0xa5;
    say("select of thousands: %s, set %d, touched %d", outcome(ready), FD_ISSET(fd, &sets.set), touched);
    say("select: %s %s", outcome(select(-1, &sets.set, NULL, NULL, NULL)), outcome(select(64, bad, NULL, NULL, NULL)));
    FD_ZERO(&sets.set);
    FD_SET(fd, &sets.set);
    FD_SET(60, &sets.set);
    say("select, closed: %s", outcome(select(64, &sets.set, NULL, NULL, NULL)));
    say("left as it was: %d %d", FD_ISSET(fd, &sets.set), FD_ISSET(60, &sets.set));

    struct epoll_event event = {EPOLLIN, {.fd = fd}};
    int set = epoll_create1(EPOLL_CLOEXEC);
    say("epoll_ctl: %s %s %s", outcome(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad)), outcome(epoll_ctl(set, 77, fd, &event)),
        outcome(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event)));
    say("itself: %s, closed: %s", outcome(epoll_ctl(set, EPOLL_CTL_ADD, set, &event)),
        outcome(epoll_ctl(set, EPOLL_CTL_ADD, 60, &event)));
    say("add: %s, del: %s, del: %s", outcome(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)),
        outcome(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad)), outcome(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL)));
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    say("epoll_wait: %s %s %s %s", outcome(epoll_wait(set, bad, 1, 1000)), outcome(epoll_wait(set, &event, 0, 0)),
        outcome(epoll_wait(set, &event, -1, 0)), outcome(epoll_wait(set, &event, INT_MAX, 0)));
    say("of no set: %s", outcome(epoll_wait(fd, &event, 1, 0)));
    say("it still says: %s", outcome(epoll_wait(set, &event, 1, 1000)));
    close(set);

    int ends[2];
    if (pipe(ends)) die("pipe");
    say("sendfile: pipe %s, itself %s, offset %s", outcome(sendfile(fd, ends[0], NULL, 1)),
        outcome(sendfile(fd, fd, NULL, 1)), outcome(sendfile(fd, is_bad_fd, bad, 1)));
    say("splice: file %s, offset %s", outcome(splice(fd, NULL, is_bad_fd, NULL, 1, 0)),
        outcome(splice(fd, (void *)data, ends[1], NULL, 1, 0)));
    say_rest(fd, 100);
    tell();
}

/* -- the program's own SIGSEGV: its handlers, its default action, its view of them -- */
static sigjmp_buf back;
static volatile sig_atomic_t faults, fault_code, on_stack;
static void *volatile fault_at;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    stack_t stack;
    faults++, fault_code = info->si_code, fault_at = info->si_addr;
    on_stack = !sigaltstack(NULL, &stack) && stack.ss_flags & SS_ONSTACK;
    siglongjmp(back, 1);
}

static void say_action(const char *what, int signal) {
    struct sigaction now;
    if (sigaction(signal, NULL, &now)) die("sigaction");
    const char *handler = now.sa_handler == SIG_DFL ? "default" : now.sa_handler == SIG_IGN ? "ignored" : "ours";
    say("%s: %s, siginfo %d, reset %d", what, now.sa_sigaction == on_fault || *handler != 'o' ? handler : "another's",
        !!(now.sa_flags & SA_SIGINFO), !!((unsigned)now.sa_flags & SA_RESETHAND));
}

static void say_end(const char *what, void (*how)(int), int fd) {
    pid_t child = fork();
    int status;
    if (child == 0) {
        how(fd);
        _exit(0);
    }
    waitpid(child, &status, 0);
    say("%s: exit %d signal %d", what, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void touch_nothing(int fd) {
    (void)fd;
    *(volatile char *)16 = 1;
}
static void touch_past_the_end(int fd) {
    (void)fd;
    *past_the_end() = 1;
}
static void be_sent_one(int fd) {
    (void)fd;
    kill(getpid(), SIGSEGV);
    pause();
}
static void raise_one(int fd) {
    (void)fd;
    raise(SIGBUS);
}
static void ignore_and_be_sent(int fd) {
    (void)fd;
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
    _exit(7);
}
static void ignore_and_touch(int fd) {
    signal(SIGSEGV, SIG_IGN);
    touch_nothing(fd);
}
static void be_called_bad(int fd) { _exit(recv(fd, edge() + 1, 1, MSG_PEEK) == -1 && errno == EFAULT ? 8 : 9); }
static void exec_and_be_sent(int fd) {
    (void)fd;
    execl("/bin/sh", "sh", "-c", "kill -SEGV $$", (char *)NULL);
}
static int deeper(volatile char *above) {
    volatile char here[PAGE];
    here[0] = *above;
    return deeper(here) + here[0];
}
static void overflow(int fd) {
    char start = (char)fd;
    _exit(deeper(&start));
}

static void faults_server(int fd) {
    send_seeded(fd, 6, 100);
    tell();
    await();
}

static void try_and_touch(const char *what, int fd, void *at) {
    faults = 0;
    say("%s, a call: %s, handled %d", what, outcome(recv(fd, at, 10, MSG_PEEK)), faults);
    if (!sigsetjmp(back, 1)) *(volatile char *)at = 1;
    say("%s, the program: handled %d, code %d, there %d, on its stack %d", what, faults, fault_code, fault_at == at, on_stack);
}

static void faults_client(int fd) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536};
    void *bad = edge() + 1, *behind = past_the_end();
    await();
    struct pollfd readable = {fd, POLLIN, 0};
    expect(poll(&readable, 1, 10000) == 1, "bytes arrive");
    say("before: %s", outcome(recv(fd, bad, 10, MSG_PEEK)));
    say_action("at first", SIGSEGV);
    say_end("fault", touch_nothing, fd);
    say_end("past a file's end", touch_past_the_end, fd);
    say_end("sent", be_sent_one, fd);
    say_end("raised", raise_one, fd);
    say_end("ignored, sent", ignore_and_be_sent, fd);
    say_end("ignored, fault", ignore_and_touch, fd);
    say_end("a bad call in a child", be_called_bad, fd);
    say_end("after exec", exec_and_be_sent, fd);
    say_end("overflow", overflow, fd);

    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    try_and_touch("plain", fd, bad);
    try_and_touch("bus", fd, behind);
    sigaltstack(&stack, NULL);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    try_and_touch("alternate", fd, bad);
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    sigaction(SIGSEGV, &action, NULL);
    say_action("once", SIGSEGV);
    try_and_touch("once", fd, bad);
    say_action("used up", SIGSEGV);
    say("then: %s", outcome(recv(fd, bad, 10, MSG_PEEK)));
    say_end("fault", touch_nothing, fd);
    signal(SIGSEGV, SIG_IGN);
    say_action("ignored", SIGSEGV);
    signal(SIGSEGV, SIG_DFL);
    say_action("default", SIGSEGV);
    say("then: %s", outcome(recv(fd, bad, 10, MSG_PEEK)));
    say_rest(fd, 100);
    tell();
}

static const struct bed_case cases[] = {
    {"reads", reads_server, reads_client},    {"writes", writes_server, writes_client},
    {"vectors", vectors_server, vectors_client}, {"others", others_server, others_client},
    {"faults", faults_server, faults_client}, {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    is_bad_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    return run_case(argc, argv, cases);
}
