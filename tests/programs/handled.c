/* Signals in calls that wait: their handlers jump away, return, or are kept back by the call's mask; and threads
 * that are cancelled there.
 *   handled server|client CASE PORT */
#include "bed.h"
#include <pthread.h>
#include <setjmp.h>
#include <linux/userfaultfd.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>

static volatile sig_atomic_t handled, waits;
static sigjmp_buf back;

static void on_signal(int number) {
    (void)number;
    handled++;
}

static void jump(int number) {
    (void)number;
    if (!waits) return;
    waits = 0;
    siglongjmp(back, 1);
}

/* Past the time of the call that it interrupts. */
static void lingers(int number) {
    (void)number;
    if (!waits) return;
    handled++;
    for (int64_t until = now_ns() + 400000; now_ns() < until;) {}
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(number, &action, NULL)) die("sigaction");
}

static void alarm_in(int us, int every) {
    struct itimerval timer = {{0, every}, {0, us}};
    if (setitimer(ITIMER_REAL, &timer, NULL)) die("setitimer");
}

static int set_of(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("a set");
    return set;
}

/* Echoes each byte: an 's' at leisure, and some others later than a spin lasts. */
static void echo_server(int fd) {
    char byte;
    for (int i = 0; recv_upto(fd, &byte, 1) == 1; i++) {
        if (byte == 's' || i % 3 == 0) usleep(byte == 's' ? 3000 : 300);
        send_all(fd, &byte, 1);
    }
}

/* -- siglongjmp out of epoll_wait, at any moment: what was posted is not lost by that -- */
static void jumps_client(int fd) {
    enum { ROUNDS = 9000, EVERY_US = 337, SLOW_MS = 90 };
    struct epoll_event event;
    char byte;
    const int set = set_of(fd);
    volatile int slow = 0;
    handle(SIGALRM, jump, 0);
    alarm_in(EVERY_US, EVERY_US);
    for (volatile int i = 0; i < ROUNDS; i++) {
        volatile int64_t began = now_ms();
        send_all(fd, "x", 1);
        sigsetjmp(back, 1);
        waits = 1;
        int told = epoll_wait(set, &event, 1, 10000);
        waits = 0;
        expect(told == 1, "the byte comes");
        recv_all(fd, &byte, 1);
        slow += now_ms() - began >= SLOW_MS;
    }
    alarm_in(0, 0);
    say("rounds that stalled: %s", slow ? "some" : "none");
}

#define jumps_server echo_server

/* -- epoll_pwait whose mask keeps the signal back: it is no end of the call, whenever its handler runs -- */
static void masked_client(int fd) {
    enum { ROUNDS = 300, ANSWERED = 60 };
    const int set = set_of(fd);
    struct epoll_event event;
    sigset_t all;
    char byte;
    int ended = 0;
    sigfillset(&all);
    handle(SIGALRM, on_signal, 0);
    for (int i = 0; i < ROUNDS; i++) {
        /* After waits that were short a thread spins. */
        for (int j = 0; j <= ANSWERED; j++) {
            send_all(fd, j < ANSWERED ? "x" : "s", 1);
            if (j == ANSWERED) alarm_in(8 + i % 25, 0);
            while (epoll_pwait(set, &event, 1, -1, &all) < 0) ended++;
            recv_all(fd, &byte, 1);
        }
    }
    say("handlers %d, calls that ended by EINTR: %d", (int)handled, ended);
}

#define masked_server echo_server

/* -- a part of what MSG_WAITALL asks for, and a handler with SA_RESTART: the part is what the call returns -- */
static void part_client(int fd) {
    char bytes[10];
    int64_t began = now_ms();
    handle(SIGALRM, on_signal, SA_RESTART);
    tell();
    alarm_in(300000, 0);
    say("a part: %s", outcome(recv(fd, bytes, sizeof bytes, MSG_WAITALL)));
    say("at the signal: %d", handled == 1 && now_ms() - began < 1500);
    tell();
    say("the rest: %s", outcome(recv(fd, bytes, 7, MSG_WAITALL)));
}

static void part_server(int fd) {
    await();
    send_all(fd, "abc", 3);
    struct pollfd told = {wait_fd, POLLIN, 0};
    poll(&told, 1, 3000); /* not for ever: who waits for all would */
    send_all(fd, "defghij", 7);
    await();
}

/* -- with SA_RESTART, before the first byte: the call begins anew, and waits for all -- */
static void restarts_client(int fd) {
    char bytes[100];
    handle(SIGALRM, on_signal, SA_RESTART);
    tell();
    alarm_in(100000, 0);
    errno = 0;
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_WAITALL);
    say("all: %zd, handlers %d, errno %d", got, (int)handled, errno);
    tell();
}

static void restarts_server(int fd) {
    char half[50] = {0};
    await();
    for (int i = 0; i < 2; i++) {
        usleep(250000); /* longer than the client's alarm: no byte comes before its signal */
        send_all(fd, half, sizeof half);
    }
    await();
}

/* -- a look that asks for all, and has seen a part -- */
static void looks_client(int fd) {
    char bytes[10];
    int64_t began = now_ms();
    handle(SIGALRM, on_signal, SA_RESTART);
    tell();
    alarm_in(300000, 0);
    say("a look: %s", outcome(recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL)));
    say("at the signal: %d", handled == 1 && now_ms() - began < 1500);
    tell();
    say("all: %s", outcome(recv(fd, bytes, sizeof bytes, MSG_WAITALL)));
}

#define looks_server part_server

/* -- a send that has sent a part, and messages of which the first one is sent in part: the part is what is told of, and no byte of a later message goes -- */
enum { MUCH = 64 << 20 };

static void sends_client(int fd) {
    static char much[MUCH];
    struct iovec parts[2] = {{much, MUCH}, {much, MUCH}};
    struct mmsghdr messages[2] = {{{.msg_iov = parts, .msg_iovlen = 1}, 0}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 0}};
    handle(SIGALRM, on_signal, SA_RESTART);
    for (int way = 0; way < 2; way++) {
        uint64_t sent = 0;
        int64_t began = now_ms();
        int calls = handled;
        alarm_in(15000, 0); /* before a lane that stays full gives way to TCP, whose own send ends */
        if (way == 0) {
            ssize_t n = send(fd, much, MUCH, 0);
            say("a part: %d", n > 0 && n < MUCH);
            sent = n;
        } else {
            say("messages: %s", outcome(sendmmsg(fd, messages, 2, 0)));
            say("a part: %d", messages[0].msg_len > 0 && messages[0].msg_len < MUCH);
            sent = messages[0].msg_len;
        }
        say("at the signal: %d", handled == calls + 1 && now_ms() - began < 1500);
        if (write(tell_fd, &sent, sizeof sent) != sizeof sent) die("count");
        await();
    }
}

static void takes_what_is_sent(int fd) {
    static char some[1 << 20];
    uint64_t sent = 0, got = 0;
    struct pollfd told = {wait_fd, POLLIN, 0}, more = {fd, POLLIN, 0};
    poll(&told, 1, 3000); /* not for ever: who sends all would wait */
    while (!sent || got < sent || poll(&more, 1, 100) == 1) {
        if (poll(&told, 1, 0) == 1 && read(wait_fd, &sent, sizeof sent) != sizeof sent) die("count");
        if (poll(&more, 1, 100) == 1) got += recv(fd, some, sizeof some, 0);
    }
    say("every byte that was told of, and no other: %d", got == sent);
    tell();
}

static void sends_server(int fd) {
    for (int way = 0; way < 2; way++) takes_what_is_sent(fd);
}

/* -- several messages in one call: a handler with SA_RESTART ends it behind the first one -- */
static void messages_client(int fd) {
    char bytes[2][10];
    struct iovec parts[2] = {{bytes[0], 10}, {bytes[1], 10}};
    struct mmsghdr messages[2] = {{{.msg_iov = parts, .msg_iovlen = 1}, 0}, {{.msg_iov = parts + 1, .msg_iovlen = 1}, 0}};
    struct timespec limit = {5, 5};
    int64_t began = now_ms();
    say("of none: %s", outcome(recvmmsg(fd, messages, 0, 0, &limit)));
    say("the time: %ld %ld", (long)limit.tv_sec, limit.tv_nsec);
    handle(SIGALRM, on_signal, SA_RESTART);
    tell();
    alarm_in(300000, 0);
    int got = recvmmsg(fd, messages, 2, 0, NULL);
    say("messages: %s of %u", outcome(got), messages[0].msg_len);
    say("at the signal: %d", handled == 1 && now_ms() - began < 1500);
    /* The kernel keeps its own ERESTARTSYS as the socket's error, of which no program should know. */
    int error;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    tell();
    got = recvmmsg(fd, messages, 2, MSG_WAITALL, NULL);
    say("messages: %s of %u and %u", outcome(got), messages[0].msg_len, messages[1].msg_len);
    tell();
}

static void messages_server(int fd) {
    char bytes[20] = {0};
    await();
    send_all(fd, bytes, 10);
    struct pollfd told = {wait_fd, POLLIN, 0};
    poll(&told, 1, 3000); /* not for ever: who waits for two would */
    for (int i = 0; i < 4; i++) {
        send_all(fd, bytes, 5);
        usleep(20000);
    }
    await();
    await();
}

/* -- a handler that lasts longer than the call's time, from the spin of that on: it ends the call -- */
static void late_client(int fd) {
    enum { ROUNDS = 300, ANSWERED = 20 };
    const int set = set_of(fd);
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    struct timespec limit = {0, 150000};
    sigset_t none;
    char byte;
    sigemptyset(&none);
    handle(SIGALRM, lingers, 0);
    for (int way = 0; way < 4; way++) {
        int missed = 0;
        for (int i = 0; i < ROUNDS; i++) {
            /* After waits that were short a thread spins. */
            for (int j = 0; j < ANSWERED; j++) {
                send_all(fd, "x", 1);
                while ((way % 2 ? epoll_wait(set, &event, 1, -1) : poll(&one, 1, -1)) < 0) {}
                recv_all(fd, &byte, 1);
            }
            alarm_in(20 + i % 30, 0);
            int before = handled;
            waits = 1;
            const sigset_t *mask = way < 2 ? NULL : &none;
            int told = way % 2 ? epoll_pwait2(set, &event, 1, &limit, mask) : ppoll(&one, 1, &limit, mask);
            waits = 0;
            missed += told == 0 && handled != before;
            alarm_in(0, 0);
        }
        say("%s, %s: missed %s", way % 2 ? "epoll_pwait2" : "ppoll", way < 2 ? "no mask" : "none kept back", missed > ROUNDS / 10 ? "some" : "none");
    }
}

/* Echoes each byte at once. */
static void late_server(int fd) {
    char byte;
    while (recv_upto(fd, &byte, 1) == 1) send_all(fd, &byte, 1);
}

/* -- two threads that wait for one set, of which one is cancelled as a byte comes: the other one is told of it -- */
enum { CANCELS = 40 };

static int shared_set;
static volatile int taken;

static void *takes(void *fd) {
    for (;;) {
        struct epoll_event event;
        char byte;
        int told = epoll_wait(shared_set, &event, 1, -1);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        if (told == 1 && recv(*(int *)fd, &byte, 1, MSG_DONTWAIT) == 1) taken++;
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    }
    return NULL;
}

static void cancelled_client(int fd) {
    int lost = 0;
    shared_set = set_of(fd);
    for (int i = 0; i < CANCELS; i++) {
        pthread_t first, second;
        char byte;
        taken = 0;
        pthread_create(&first, NULL, takes, &fd);
        usleep(5000);
        pthread_create(&second, NULL, takes, &fd);
        usleep(25000);
        tell();
        for (int64_t until = now_ns() + i * 10000; now_ns() < until;) {}
        pthread_cancel(first);
        for (int64_t until = now_ms() + 1000; !taken && now_ms() < until;) usleep(200);
        pthread_cancel(second);
        pthread_join(first, NULL);
        pthread_join(second, NULL);
        if (!taken) lost++, recv_all(fd, &byte, 1);
    }
    say("bytes not told of: %d", lost);
    tell();
}

static void cancelled_server(int fd) {
    for (int i = 0; i < CANCELS; i++) {
        await();
        send_all(fd, "!", 1);
    }
    await();
}

/* -- a signal that comes while the call copies: memory that is not there until its handler is due. The part is what the call returns -- */
enum { PAGE = 4096, AT = 4 * PAGE };

static int faults;
static pthread_t copies;

/* The page of the fault is there when the signal has been sent. */
static void *sends_signal(void *unused) {
    struct uffd_msg fault;
    expect(read(faults, &fault, sizeof fault) == sizeof fault && fault.event == UFFD_EVENT_PAGEFAULT, "a fault");
    pthread_kill(copies, SIGALRM);
    struct uffdio_zeropage page = {.range = {fault.arg.pagefault.address & -(uint64_t)PAGE, PAGE}};
    if (ioctl(faults, UFFDIO_ZEROPAGE, &page)) die("UFFDIO_ZEROPAGE");
    return unused;
}

/* `size` bytes, of which the page that begins at `at` is not there. */
static char *with_a_hole(size_t size, size_t at) {
    struct uffdio_api api = {.api = UFFD_API};
    char *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register page = {{(uintptr_t)bytes + at, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (bytes == MAP_FAILED || faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &page)) die("userfaultfd");
    return bytes;
}

static void copying_client(int fd) {
    pthread_t thread;
    copies = pthread_self();
    handle(SIGALRM, on_signal, SA_RESTART);
    for (int way = 0; way < 2; way++) {
        char *bytes = with_a_hole(way ? MUCH : PAGE, way ? AT : 0);
        int64_t began = now_ms();
        pthread_create(&thread, NULL, sends_signal, NULL);
        await();
        if (way == 0) {
            say("of all: %s", outcome(recv(fd, bytes, 10, MSG_WAITALL)));
            say("a part: %.3s", bytes);
        } else {
            ssize_t n = send(fd, bytes, MUCH, 0);
            say("a part: %d", n >= AT && n < MUCH);
            uint64_t sent = n;
            if (write(tell_fd, &sent, sizeof sent) != sizeof sent) die("count");
        }
        say("at the signal: %d", handled == way + 1 && now_ms() - began < 1500);
        pthread_join(thread, NULL);
        close(faults);
        if (way == 0) {
            tell();
            say("the rest: %s", outcome(recv(fd, bytes, 7, MSG_WAITALL)));
        }
    }
    await();
}

static void copying_server(int fd) {
    send_all(fd, "abc", 3);
    tell();
    struct pollfd told = {wait_fd, POLLIN, 0};
    poll(&told, 1, 3000); /* not for ever: who waits for all would */
    send_all(fd, "defghij", 7);
    await();
    tell();
    takes_what_is_sent(fd);
}

/* -- a signal before the first byte, with SA_RESTART, and one behind it: the call begins anew once -- */
static void tells_first(int number) {
    (void)number;
    if (handled++ == 0) tell();
}

static void anew_client(int fd) {
    char bytes[10];
    handle(SIGALRM, tells_first, SA_RESTART);
    alarm_in(100000, 400000);
    say("a part: %s", outcome(recv(fd, bytes, sizeof bytes, MSG_WAITALL)));
    alarm_in(0, 0);
    say("a signal before it, and one behind: %d", handled >= 2);
    tell();
    say("the rest: %s", outcome(recv(fd, bytes, 7, MSG_WAITALL)));
    tell();
}

static void anew_server(int fd) {
    await();
    send_all(fd, "abc", 3);
    struct pollfd told = {wait_fd, POLLIN, 0};
    poll(&told, 1, 3000); /* not for ever: who waits for all would */
    await();
    send_all(fd, "defghij", 7);
    await();
}

/* -- handlers that wait with a mask of their own, within a wait with a mask: the outer one ends by its signal all the same -- */
static int waited_for;

static long masked_wait(int way, int set, int fd, struct timespec limit, const sigset_t *mask) {
    struct pollfd one = {fd, POLLIN, 0};
    struct epoll_event event;
    fd_set reading;
    FD_ZERO(&reading);
    FD_SET(fd, &reading);
    if (way == 0) return ppoll(&one, 1, &limit, mask);
    if (way == 1) return pselect(fd + 1, &reading, NULL, NULL, &limit, mask);
    if (way == 2) return epoll_pwait(set, &event, 1, limit.tv_nsec / 1000000, mask);
    return epoll_pwait2(set, &event, 1, &limit, mask);
}

static void waits_within(int number) {
    sigset_t all;
    (void)number;
    sigfillset(&all);
    handled++;
    if (!waits) return;
    for (int way = 0; way < 4; way++) masked_wait(way, shared_set, waited_for, (struct timespec){0, 0}, &all);
}

static void within_client(int fd) {
    enum { ROUNDS = 200, ANSWERED = 20 };
    static const char *const names[] = {"ppoll", "pselect", "epoll_pwait", "epoll_pwait2"};
    const struct timespec limit = {0, 40000000};
    sigset_t none, one;
    char byte;
    waited_for = fd, shared_set = set_of(fd);
    sigemptyset(&none);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    handle(SIGALRM, waits_within, 0);
    handle(SIGUSR1, waits_within, SA_RESTART);
    for (int way = 0; way < 4; way++) {
        int missed = 0, is_well = 1;
        for (int i = 0; i < ROUNDS; i++) {
            /* After waits that were short a thread spins. */
            for (int j = 0; j < ANSWERED; j++) {
                send_all(fd, "x", 1);
                while (masked_wait(way, shared_set, fd, (struct timespec){0, 999000000}, &none) != 1) {}
                recv_all(fd, &byte, 1);
            }
            /* Of the pending one its wait is told first; of the alarm's handler it is while it spins. */
            int is_pending = i % 4 == 0;
            if (is_pending) {
                sigprocmask(SIG_BLOCK, &one, NULL);
                raise(SIGUSR1);
            }
            if (!is_pending) alarm_in(20 + i % 30, 0);
            int before = handled;
            waits = 1; /* an alarm of before is none of this wait's */
            long told = masked_wait(way, shared_set, fd, limit, &none);
            waits = 0;
            int ended = told < 0 && errno == EINTR;
            alarm_in(0, 0);
            if (is_pending) {
                is_well &= ended && handled == before + 1;
                sigprocmask(SIG_UNBLOCK, &one, NULL);
                is_well &= handled == before + 1;
            } else {
                missed += told == 0 && handled != before;
            }
        }
        if (missed) fprintf(stderr, "%s: missed %d\n", names[way], missed);
        say("%s: pending %s, missed %s", names[way], is_well ? "let in" : "kept back", missed > ROUNDS / 10 ? "some" : "none");
    }
}

#define within_server late_server

int main(int argc, char **argv) {
    static const struct bed_case cases[] = {
        {"jumps", jumps_server, jumps_client},
        {"masked", masked_server, masked_client},
        {"part", part_server, part_client},
        {"restarts", restarts_server, restarts_client},
        {"looks", looks_server, looks_client},
        {"sends", sends_server, sends_client},
        {"messages", messages_server, messages_client},
        {"late", late_server, late_client},
        {"cancelled", cancelled_server, cancelled_client},
        {"copying", copying_server, copying_client},
        {"anew", anew_server, anew_client},
        {"within", within_server, within_client},
        {NULL, NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
