/* What programs do to a library underneath them: cancel and jump out of a wait, write in a signal handler, close every
 * descriptor, share a stream among threads, send urgent bytes.
 *   hazards server|client CASE PORT */
#include "bed.h"
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/uio.h>

static unsigned char data[65536];

static void every(int ms, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    struct itimerval timer = {{0, ms * 1000}, {0, ms * 1000}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void no_more(void) {
    struct itimerval off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &off, NULL);
}

/* What most cases end with: the connection is as good as before. */
static void is_alive_client(int fd) {
    warm_up_client(fd);
    say("alive");
}

/* -- pthread_cancel of a thread that waits for bytes -- */
static void *waits_for_bytes(void *fd) {
    char byte;
    recv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

static void cancel_client(int fd) {
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, waits_for_bytes, &fd);
        usleep(50000); /* most likely in recv(); the result is the same if not */
        pthread_cancel(thread);
        pthread_join(thread, &result);
        say("cancelled: %d", result == PTHREAD_CANCELED);
    }
    is_alive_client(fd);
}

/* -- handlers in a wait that no hook of libc's sigaction() knows: libc's own, and one that was installed past it -- */
static void *changes_group(void *argument) {
    usleep(50000); /* most likely the other thread is in recv(); the result is the same if not */
    expect(setgid(getgid()) == 0, "each thread gets the group that it has");
    tell();
    return argument;
}

static void ignore(int signal) {
    (void)signal;
}

static void unknown_client(int fd) {
    pthread_t thread;
    pthread_create(&thread, NULL, changes_group, NULL);
    say("setgid: %s", outcome(recv(fd, data, 1, 0)));
    pthread_join(thread, NULL);
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    int (*past)(int, const struct sigaction *, struct sigaction *) = libc ? dlsym(libc, "sigaction") : NULL;
    expect(past != NULL, "there is libc's sigaction");
    for (int restarts = 1; restarts >= 0; restarts--) {
        struct sigaction action = {.sa_handler = ignore, .sa_flags = restarts ? SA_RESTART : 0};
        struct itimerval timer = {{0, 0}, {0, 50000}};
        past(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &timer, NULL);
        if (restarts) tell();
        say("past the hooks, restarts %d: %s", restarts, outcome(recv(fd, data, 1, 0)));
    }
    is_alive_client(fd);
}

static void unknown_server(int fd) {
    for (int i = 0; i < 2; i++) {
        await();
        usleep(150000);
        send_all(fd, "!", 1);
    }
    warm_up_server(fd);
}

/* -- siglongjmp out of a wait -- */
static sigjmp_buf back;
static void jump(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static void jump_client(int fd) {
    for (volatile int i = 0; i < 5; i++) {
        if (!sigsetjmp(back, 1)) {
            every(20, jump);
            recv(fd, data, 10, 0);
            say("recv returned");
        }
        no_more();
        say("jumped");
    }
    is_alive_client(fd);
}

/* -- a handler that writes to the connection whose write it interrupts -- */
static int handlers_fd;
static volatile long handled;
static void write_b(int signal) {
    (void)signal;
    int before = errno;
    ssize_t sent = send(handlers_fd, "bbbbbbbbbbbbbbbb", 16, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) handled += sent;
    errno = before;
}

static void handler_client(int fd) {
    long sent = 0, counts[2];
    handlers_fd = fd;
    memset(data, 'a', sizeof data);
    every(1, write_b);
    for (int64_t until = now_ms() + 500; now_ms() < until && sent < 100 << 20;) {
        ssize_t count = send(fd, data, 1 + sent % 5000, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR) die("send");
        if (count > 0) sent += count;
    }
    no_more();
    shutdown(fd, SHUT_WR);
    recv_all(fd, counts, sizeof counts);
    say("the handler wrote: %d", handled > 16);
    say("all of both arrived: %d %d", counts[0] == sent, counts[1] == handled);
}

/* -- a handler that corks, writes and uncorks the connection whose cork it interrupts -- */
static void set_cork(int fd, int on) {
    if (setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on)) die("TCP_CORK");
}

static void cork_b(int signal) {
    int before = errno;
    set_cork(handlers_fd, 1);
    write_b(signal);
    set_cork(handlers_fd, 0);
    errno = before;
}

static void corks_client(int fd) {
    long sent = 0, counts[2];
    handlers_fd = fd;
    memset(data, 'a', sizeof data);
    warm_up_client(fd);
    every(1, cork_b);
    for (int64_t until = now_ms() + 1000; now_ms() < until;) {
        set_cork(fd, 1);
        ssize_t count = send(fd, data, 1 + sent % 700, MSG_NOSIGNAL);
        if (count < 0 && errno != EINTR) die("send");
        if (count > 0) sent += count;
        set_cork(fd, 0);
    }
    no_more();
    shutdown(fd, SHUT_WR);
    recv_all(fd, counts, sizeof counts);
    say("the handler wrote: %d", handled > 16);
    say("all of both arrived: %d %d", counts[0] == sent, counts[1] == handled);
}

static void handler_server(int fd) {
    long counts[2] = {0, 0};
    for (ssize_t got; (got = recv(fd, data, sizeof data, 0)) != 0;) {
        if (got < 0) die("recv");
        for (ssize_t i = 0; i < got; i++) counts[data[i] == 'b']++;
    }
    send_all(fd, counts, sizeof counts);
}

static void corks_server(int fd) {
    warm_up_server(fd);
    handler_server(fd);
}

/* -- a program that closes every descriptor but its own, as daemons do -- */
static void closes_all(int fd) {
    for (int other = 3; other < 1024; other++)
        if (other != fd && other != tell_fd && other != wait_fd) close(other);
}

static void closeall_server(int fd) {
    warm_up_server(fd);
    closes_all(fd);
    warm_up_server(fd);
}

static void closeall_client(int fd) {
    closes_all(fd);
    is_alive_client(fd);
    closes_all(fd);
    int number = dup(1); /* whatever the library held at this number is the program's now */
    dprintf(number, "a descriptor of its own\n");
    is_alive_client(fd);
}

/* -- frames from four threads, each one writev(): none is torn apart by another -- */
#define FRAME 301
static pthread_barrier_t barrier;
struct writer {
    int fd, index;
};

static void *writes_frames(void *argument) {
    struct writer *writer = argument;
    unsigned char bytes[FRAME];
    memset(bytes, 'A' + writer->index, FRAME);
    struct iovec parts[3] = {{bytes, 1}, {bytes + 1, 100}, {bytes + 101, FRAME - 101}};
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 8; i++) expect(writev(writer->fd, parts, 3) == FRAME, "a frame is taken whole");
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier); /* the main thread has had its answer: room for the next round */
    }
    return NULL;
}

static void frames_client(int fd) {
    pthread_t threads[4];
    struct writer writers[4];
    char byte;
    pthread_barrier_init(&barrier, NULL, 5);
    for (int i = 0; i < 4; i++) {
        writers[i] = (struct writer){fd, i};
        pthread_create(&threads[i], NULL, writes_frames, &writers[i]);
    }
    for (int round = 0; round < 100; round++) {
        pthread_barrier_wait(&barrier);
        recv_all(fd, &byte, 1);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    say("written");
}

static void frames_server(int fd) {
    int seen[4] = {0};
    for (int frame = 1; frame <= 100 * 4 * 8; frame++) {
        recv_all(fd, data, FRAME);
        for (int i = 1; i < FRAME; i++) expect(data[i] == data[0], "the frame is of one writer");
        seen[data[0] - 'A']++;
        if (frame % 32 == 0) send_all(fd, "!", 1);
    }
    say("frames: %d %d %d %d", seen[0], seen[1], seen[2], seen[3]);
}

/* -- two threads read one stream: each byte goes to one of them -- */
static volatile long read_in_all;
static void *reads(void *fd) {
    unsigned char mine[3000];
    long sum = 0;
    for (ssize_t got; (got = recv(*(int *)fd, mine, sizeof mine, 0)) > 0;) {
        __atomic_add_fetch(&read_in_all, got, __ATOMIC_SEQ_CST);
        for (ssize_t i = 0; i < got; i++) sum += mine[i];
    }
    return (void *)sum;
}

static void readers_client(int fd) {
    pthread_t threads[3];
    long sum = 0;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, reads, &fd);
    for (int i = 0; i < 3; i++) {
        void *part;
        pthread_join(threads[i], &part);
        sum += (long)part;
    }
    say("read %ld sum %ld", read_in_all, sum);
    tell();
}

static void readers_server(int fd) {
    uint64_t seed = 12;
    for (int i = 0; i < 60; i++) {
        rng_fill(&seed, data, 50000);
        send_all(fd, data, 50000);
    }
    shutdown(fd, SHUT_WR);
    await();
}

/* -- urgent data -- */
static void urgent_server(int fd) {
    send_all(fd, "before", 6);
    say("urgent: %s", outcome(send(fd, "!", 1, MSG_OOB)));
    tell();
    await();
    send_all(fd, "after", 5);
    warm_up_server(fd);
}

static void urgent_client(int fd) {
    char byte = 0;
    int mark = -1;
    struct pollfd urgent = {fd, POLLPRI, 0};
    await();
    say("poll: %d", poll(&urgent, 1, 10000));
    say("urgent: %s", outcome(recv(fd, &byte, 1, MSG_OOB)));
    say("it is %c", byte);
    recv_all(fd, data, 6);
    say("before: %.6s", (char *)data);
    ioctl(fd, SIOCATMARK, &mark);
    say("at mark: %d", mark);
    tell();
    recv_all(fd, data, 5);
    say("after: %.5s", (char *)data);
    is_alive_client(fd);
}

#ifdef __GLIBC__
/* -- handlers by the old names: each returns what was there before, whoever set it; musl has no ssignal -- */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static volatile int first_runs, second_runs;
static void first_handler(int signal) { (void)signal, first_runs++; }
static void second_handler(int signal) { (void)signal, second_runs++; }

static const char *named(void (*handler)(int)) {
    if (handler == first_handler) return "first";
    if (handler == second_handler) return "second";
    if (handler == SIG_HOLD) return "held";
    return handler == SIG_ERR ? strerrorname_np(errno) : handler == SIG_IGN ? "ignored" : "default";
}

/* Of a handler that is installed by each old name: what siginterrupt() was told goes for later ones, too. */
extern __typeof__(signal) bsd_signal;
static void restart_flags(const char *when) {
    static void (*(*const by[])(int, void (*)(int)))(int) = {signal, ssignal, bsd_signal, sysv_signal, sigset};
    for (unsigned way = 0; way < sizeof by / sizeof *by; way++) {
        struct sigaction now;
        by[way](SIGUSR2, first_handler);
        sigaction(SIGUSR2, NULL, &now);
        say("%s, %u: %d", when, way, (now.sa_flags & SA_RESTART) != 0);
    }
}

static void runs(void) {
    raise(SIGUSR1);
    say("%d %d", first_runs, second_runs);
}

static void dispositions_client(int fd) {
    signal(SIGUSR1, first_handler);
    void (*before)(int) = sigset(SIGUSR1, second_handler);
    say("sigset: %s", named(before));
    runs();
    signal(SIGUSR1, before);
    runs();
    say("hold: %s", named(sigset(SIGUSR1, SIG_HOLD)));
    runs();
    say("again: %s", named(sigset(SIGUSR1, SIG_HOLD)));
    say("let in: %s, %d %d", named(sigset(SIGUSR1, second_handler)), first_runs, second_runs);
    say("sigignore: %d", sigignore(SIGUSR1));
    runs();
    say("ssignal: %s", named(ssignal(SIGUSR1, first_handler)));
    runs();
    say("bad: %s", named(sigset(SIGKILL, first_handler)));
    restart_flags("by default");
    say("siginterrupt: %d", siginterrupt(SIGUSR2, 1));
    restart_flags("interrupts");
    say("siginterrupt: %d", siginterrupt(SIGUSR2, 0));
    restart_flags("no more");
    say("siginterrupt of none: %d %d", siginterrupt(0, 1), siginterrupt(65, 1));
    warm_up_client(fd);
}
#endif

static const struct bed_case cases[] = {
    {"cancel", warm_up_server, cancel_client},     {"jump", warm_up_server, jump_client},
    {"handler", handler_server, handler_client},   {"closeall", closeall_server, closeall_client},
    {"frames", frames_server, frames_client},      {"readers", readers_server, readers_client},
    {"urgent", urgent_server, urgent_client},      {"unknown", unknown_server, unknown_client},
    {"corks", corks_server, corks_client},
#ifdef __GLIBC__
    {"dispositions", warm_up_server, dispositions_client},
#endif
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
