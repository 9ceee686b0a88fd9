/* Signals in calls that wait: their handlers jump away.
 *   handled server|client CASE PORT */
#include "bed.h"
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/time.h>

static volatile sig_atomic_t waits;
static sigjmp_buf back;

static void jump(int number) {
    (void)number;
    if (!waits) return;
    waits = 0;
    siglongjmp(back, 1);
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

/* Echoes each byte, some later than a spin lasts. */
static void echo_server(int fd) {
    char byte;
    for (int i = 0; recv_upto(fd, &byte, 1) == 1; i++) {
        if (i % 3 == 0) usleep(300);
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

int main(int argc, char **argv) {
    static const struct bed_case cases[] = {
        {"jumps", jumps_server, jumps_client},
        {NULL, NULL, NULL},
    };
    return run_case(argc, argv, cases);
}
