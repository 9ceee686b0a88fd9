/* An edge-triggered server that takes a short read for the last byte that is there, as nginx does, and clients whose requests come in
 * two sends. A lane opens in the middle: the second send may be its first bytes.
 *   drained server|client PORT CLIENTS ROUNDS */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/wait.h>

#define HEAD 180
#define BODY 50
#define WORKERS 4

static void serve(int listener, int clients) {
    static size_t have[4096];
    char room[4096];
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = listener}}, events[16];
    if (epoll_ctl(set, EPOLL_CTL_ADD, listener, &event)) die("epoll_ctl");
    for (int left = clients; left > 0;) {
        int count = epoll_wait(set, events, 16, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                fd = accept_one(listener);
                expect(fd < 4096, "few descriptors");
                fcntl(fd, F_SETFL, O_NONBLOCK);
                have[fd] = 0;
                event = (struct epoll_event){EPOLLIN | EPOLLRDHUP | EPOLLET, {.fd = fd}};
                if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
                continue;
            }
            for (;;) {
                ssize_t got = recv(fd, room, sizeof room, 0);
                if (got < 0 && errno != EAGAIN) die("recv");
                if (got == 0) {
                    close(fd);
                    left--;
                }
                if (got <= 0) break;
                for (have[fd] += got; have[fd] >= HEAD + BODY; have[fd] -= HEAD + BODY) send_all(fd, room, BODY);
                if ((size_t)got < sizeof room && !(events[i].events & EPOLLRDHUP)) break; /* drained: more is another event */
            }
        }
    }
}

static void ask(int port, int rounds) {
    char head[HEAD] = {0}, body[BODY] = {0};
    int fd = connect_to(port);
    struct timeval most = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    for (int round = 0; round < rounds; round++) {
        send_all(fd, head, sizeof head);
        send_all(fd, body, sizeof body);
        if (recv(fd, body, sizeof body, MSG_WAITALL) != sizeof body) die("an answer");
    }
    close(fd);
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|client PORT CLIENTS ROUNDS");
    int port = atoi(argv[2]), clients = atoi(argv[3]), rounds = atoi(argv[4]);
    if (!strcmp(argv[1], "server")) serve(listen_on(port), clients);
    else {
        /* Side by side, so that the server is behind them. */
        for (int worker = 0; worker < WORKERS; worker++) {
            if (fork()) continue;
            for (int client = worker; client < clients; client += WORKERS) ask(port, rounds);
            return 0;
        }
        for (int worker = 0, status; worker < WORKERS; worker++) expect(wait(&status) > 0 && !status, "every answer comes");
    }
    say("done");
    return 0;
}
