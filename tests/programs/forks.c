/* A server that forks at any moment of its connections' handshakes; the children hold the connections for a while.
 *   forks server PORT COUNT SEED
 *   forks client PORT COUNT SEED */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/wait.h>

enum { MESSAGES = 30, LARGEST = 3000 };
static unsigned char data[LARGEST], back[LARGEST];

static void serve(int listener, int count, uint64_t seed) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < count; i++) {
        int fd = accept_one(listener), forks_at = 3 + rng_next(&seed) % 12;
        unsigned pause = rng_next(&seed) % 400;
        struct epoll_event event = {EPOLLIN, {.fd = fd}};
        expect(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "the set takes the connection");
        for (int message = 0; message < MESSAGES; message++) {
            uint32_t size;
            while (epoll_wait(set, &event, 1, -1) != 1) {}
            recv_all(fd, &size, sizeof size);
            recv_all(fd, data, size);
            if (message == forks_at) {
                usleep(pause);
                if (fork() == 0) {
                    usleep(40000);
                    _exit(0);
                }
            }
            send_all(fd, data, size);
        }
        epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
        close(fd);
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
    }
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|client PORT COUNT SEED");
    int count = atoi(argv[3]);
    uint64_t seed = strtoull(argv[4], NULL, 10);
    if (!strcmp(argv[1], "server")) {
        serve(listen_on(atoi(argv[2])), count, seed);
        say("served %d", count);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        int fd = connect_to(atoi(argv[2]));
        for (int message = 0; message < MESSAGES; message++) {
            uint32_t size = 1 + rng_next(&seed) % LARGEST;
            rng_fill(&seed, data, size);
            send_all(fd, &size, sizeof size);
            send_all(fd, data, size);
            recv_all(fd, back, size);
            expect(!memcmp(data, back, size), "the answer is what was sent");
        }
        close(fd);
    }
    say("asked %d", count);
    return 0;
}
