/* Connections that come and go: soak PORT CONNS SECONDS
 * Keeps CONNS connections to an echo server, each for some messages, short lives and long ones, and compares every byte.
 * After SECONDS it lets each finish what it has begun. Prints how many there were. */
#include "bed.h"
#include <sys/epoll.h>

#define MOST 4000
struct talk {
    int fd, left;
    size_t size, sent, got;
    uint64_t out;
    unsigned char message[MOST];
};

static int port, set;
static uint64_t lives, bytes, dice = 1;

static void next_message(struct talk *talk) {
    talk->size = 1 + rng_next(&talk->out) % (rng_next(&talk->out) % 8 ? 300 : MOST);
    rng_fill(&talk->out, talk->message, talk->size);
    talk->sent = talk->got = 0;
    talk->left--;
}

static void begin(struct talk *talk) {
    talk->fd = connect_to(port);
    talk->out = ++lives;
    talk->left = rng_next(&dice) % 4 ? 1 + rng_next(&dice) % 12 : 40 + rng_next(&dice) % 200;
    if (fcntl(talk->fd, F_SETFL, O_NONBLOCK)) die("fcntl");
    next_message(talk);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = talk}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, talk->fd, &event)) die("epoll_ctl");
}

/* 1 when the connection has had its life. */
static int converse(struct talk *talk) {
    static unsigned char back[MOST];
    for (;;) {
        int stuck = 1;
        if (talk->sent < talk->size) {
            ssize_t sent = send(talk->fd, talk->message + talk->sent, talk->size - talk->sent, MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN) die("send");
            if (sent > 0) talk->sent += sent, stuck = 0;
        }
        ssize_t got = recv(talk->fd, back, talk->size - talk->got, 0);
        if (got < 0 && errno != EAGAIN) die("recv");
        expect(got != 0, "the echo server stays");
        if (got > 0) {
            expect(!memcmp(back, talk->message + talk->got, got), "the echo is what was sent");
            talk->got += got, bytes += got, stuck = 0;
            if (talk->got == talk->size && talk->left == 0) return 1;
            if (talk->got == talk->size) next_message(talk);
        }
        if (stuck) return 0;
    }
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: soak PORT CONNS SECONDS");
    port = atoi(argv[1]);
    int conns = atoi(argv[2]), open = conns;
    int64_t end = now_ms() + atoi(argv[3]) * 1000LL;
    struct talk *talks = calloc(conns, sizeof *talks);
    struct epoll_event events[64];
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < conns; i++) begin(&talks[i]);
    while (open > 0) {
        int count = epoll_wait(set, events, 64, 20000);
        if (count < 0) die("epoll_wait");
        expect(count > 0, "something happens within 20 s");
        for (int i = 0; i < count; i++) {
            struct talk *talk = events[i].data.ptr;
            if (!converse(talk)) continue;
            close(talk->fd);
            if (now_ms() < end) begin(talk);
            else open--;
        }
    }
    say("%lu connections, %lu bytes", lives, bytes);
    return 0;
}
