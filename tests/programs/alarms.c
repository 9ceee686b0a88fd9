/* A call that waits, and a signal without SA_RESTART some microseconds after it began: it ends with EINTR.
 *   alarms server|client PORT recv|poll
 * The timer's second shot, 50 ms later, ends a call that the first one did not: those are counted. */
#include "bed.h"
#include <sys/time.h>

enum { PROBES = 200, ANSWERED = 60, SECOND_US = 50000 };

static volatile int64_t handled_at;
static volatile int handled;

static void on_alarm(int signal) {
    (void)signal;
    if (!handled++) handled_at = now_ns();
}

static void server(int port) {
    int fd = accept_one(listen_on(port));
    char byte;
    warm_up_server(fd);
    while (recv_upto(fd, &byte, 1) == 1) send_all(fd, &byte, 1);
}

static void client(int port, int by_poll) {
    int fd = connect_to(port), lost = 0;
    struct sigaction action = {.sa_handler = on_alarm};
    const struct itimerval none = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    warm_up_client(fd);
    for (int i = 0; i < PROBES; i++) {
        char byte = 'x';
        struct pollfd one = {fd, POLLIN, 0};
        /* After waits that were short a thread spins. */
        for (int j = 0; j < ANSWERED; j++) send_all(fd, &byte, 1), recv_all(fd, &byte, 1);
        struct itimerval soon = {{0, SECOND_US}, {0, 15 + i % 25}};
        handled = 0;
        setitimer(ITIMER_REAL, &soon, NULL);
        int64_t begin = now_ns();
        int result = by_poll ? poll(&one, 1, -1) : (int)recv(fd, &byte, 1, 0);
        setitimer(ITIMER_REAL, &none, NULL);
        expect(result < 0 && errno == EINTR, "a signal ends the call");
        /* One that came before the call began, on TCP too, ends none. (Two that wait for a CPU are one.) */
        lost += handled > 1 && handled_at - begin > 10000;
    }
    close(fd);
    say("%s", lost > PROBES / 4 ? "signals are lost" : "ended");
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client PORT recv|poll");
    if (strcmp(argv[1], "server") == 0) server(atoi(argv[2]));
    else client(atoi(argv[2]), strcmp(argv[3], "poll") == 0);
    return 0;
}
