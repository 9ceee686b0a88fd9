/* One epoll set with two lanes that always have something, and many pipes, which become readable at once: how long until all are told of.
 *   backlog PIPES MAXEVENTS      says the median of some rounds, milliseconds */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/wait.h>

enum { MOST = 1000, LANES = 2, ROUNDS = 15, IS_LANE = 10000 };

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int compare(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv) {
    int count = argc > 2 ? atoi(argv[1]) : 0, most = argc > 2 ? atoi(argv[2]) : 0;
    if (count < 1 || count > MOST || most < 1 || most > 64) {
        die("backlog PIPES MAXEVENTS");
    }
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), lanes[LANES], pipes[MOST][2];
    static char bytes[2000];
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 8)) {
        die("listen");
    }
    getsockname(listener, (struct sockaddr *)&at, &len);
    pid_t writer = fork();
    for (int i = 0; i < LANES; i++) {
        lanes[i] = writer ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        if (!writer && connect(lanes[i], (struct sockaddr *)&at, sizeof at)) {
            die("connect");
        }
        for (int round = 0; round < 200; round++) {
            if ((!writer && send(lanes[i], bytes, 1, MSG_NOSIGNAL) != 1) || recv(lanes[i], bytes, 1, 0) != 1 ||
                (writer && send(lanes[i], bytes, 1, MSG_NOSIGNAL) != 1)) {
                die("a round");
            }
            if (round % 50 == 49) {
                usleep(5000);
            }
        }
    }
    for (int turn = 0; !writer; turn++) {
        if (send(lanes[turn % LANES], bytes, sizeof bytes, MSG_NOSIGNAL) < 0) {
            return 0;
        }
    }
    int set = epoll_create1(0), left = 0, rounds = 0;
    struct epoll_event event = {.events = EPOLLIN}, events[64];
    for (int i = 0; i < LANES; i++) {
        fcntl(lanes[i], F_SETFL, O_NONBLOCK);
        event.data.u32 = (uint32_t)(IS_LANE + i);
        epoll_ctl(set, EPOLL_CTL_ADD, lanes[i], &event);
    }
    for (int i = 0; i < count; i++) {
        if (pipe2(pipes[i], O_NONBLOCK)) {
            die("pipe2");
        }
        event.data.u32 = (uint32_t)i;
        epoll_ctl(set, EPOLL_CTL_ADD, pipes[i][0], &event);
    }
    double took[ROUNDS], began = 0, next = milliseconds() + 50;
    while (rounds < ROUNDS) {
        if (left == 0 && milliseconds() > next) {
            for (int i = 0; i < count; i++) {
                if (write(pipes[i][1], "x", 1) != 1) {
                    die("write");
                }
            }
            left = count;
            began = milliseconds();
        }
        int n = epoll_wait(set, events, most, 1000);
        for (int i = 0; i < n; i++) {
            uint32_t which = events[i].data.u32;
            if (which >= IS_LANE) {
                if (recv(lanes[which - IS_LANE], bytes, 200, 0) == 0) {
                    die("the writer has ended");
                }
            } else if (read(pipes[which][0], bytes, 1) == 1 && --left == 0) {
                took[rounds++] = milliseconds() - began;
                next = milliseconds() + 50;
            }
        }
    }
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    qsort(took, ROUNDS, sizeof *took, compare);
    printf("%.1f\n", took[ROUNDS / 2]);
    return 0;
}
