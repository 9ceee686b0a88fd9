/* What a fork costs a process that has connections: the CPU time of forking a child that ends at once, and of waiting for it.
 *   forked PORT CONNECTIONS FORKS       says microseconds for each, the least of ten parts */
#include "bed.h"
#include <limits.h>
#include <sys/resource.h>
#include <sys/wait.h>

static long spent_us(void) {
    long sum = 0;
    for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
        struct rusage usage;
        getrusage(who, &usage);
        sum += (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    }
    return sum;
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: PORT CONNECTIONS FORKS");
    int port = atoi(argv[1]), connections = atoi(argv[2]), forks = atoi(argv[3]), fds[512];
    long least = LONG_MAX;
    char message[64] = "?";
    expect(connections <= 512, "no more than 512 connections");
    for (int i = 0; i < connections; i++) fds[i] = connect_to(port);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < connections; i++) {
            send_all(fds[i], message, sizeof message);
            recv_all(fds[i], message, sizeof message);
        }
    }
    for (int part = 0; part < 10; part++) {
        long before = spent_us();
        for (int i = 0; i < forks; i++) {
            pid_t child = fork();
            if (child < 0) die("fork");
            if (!child) _exit(0);
            expect(waitpid(child, NULL, 0) == child, "the child ends");
        }
        long each = (spent_us() - before) / forks;
        if (each < least) least = each;
    }
    say("%ld", least);
    return 0;
}
