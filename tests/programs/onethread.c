/* Both ends of every connection in one thread.
 *   onethread PORT CONNS ROUNDS */
#include "bed.h"
#include <sys/epoll.h>

static unsigned char out[300000], in[300000];

/* Moves `size` bytes from one end to the other, writing whenever there is room and reading whatever is there. */
static uint64_t carry(int from, int to, uint64_t *seed, size_t size, uint64_t hash) {
    size_t sent = 0, got = 0;
    rng_fill(seed, out, size);
    int64_t until = now_ms() + 10000;
    while (got < size) {
        ssize_t count = sent < size ? send(from, out + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
        if (count < 0 && errno != EAGAIN) die("send");
        if (count > 0) sent += count;
        count = recv(to, in + got, size - got, MSG_DONTWAIT);
        if (count < 0 && errno != EAGAIN) die("recv");
        expect(count != 0, "no end of the stream");
        if (count > 0) got += count;
        expect(now_ms() < until, "the bytes arrive within 10 s");
    }
    expect(!memcmp(out, in, size), "what arrives is what was sent");
    return hash_more(hash, in, size);
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: PORT CONNS ROUNDS");
    int port = atoi(argv[1]), conns = atoi(argv[2]), rounds = atoi(argv[3]), listener = listen_on(port);
    int ends[64][2], set = epoll_create1(EPOLL_CLOEXEC);
    uint64_t seed = 77;
    expect(conns <= 64, "at most 64 connections");
    struct epoll_event none;
    expect(epoll_wait(set, &none, 1, 0) == 0, "nothing is in the set yet");
    for (int i = 0; i < conns; i++) {
        ends[i][0] = connect_to(port);
        ends[i][1] = accept_one(listener);
        struct epoll_event event = {EPOLLIN, {.u32 = i}};
        if (epoll_ctl(set, EPOLL_CTL_ADD, ends[i][1], &event)) die("epoll_ctl");
    }
    uint64_t other = 78;
    if (getenv("BED_WARM_UNTIL"))
        for (int64_t round = 0; !is_warm(0, 0); round++) {
            /* The ends are waited for: one by the set, the other by poll(). */
            struct pollfd readable = {ends[round / 2 % conns][0], POLLIN, 0};
            struct epoll_event event;
            carry(ends[round / 2 % conns][round & 1], ends[round / 2 % conns][!(round & 1)], &other, 1000, 0);
            epoll_wait(set, &event, 1, 0);
            send_all(ends[round / 2 % conns][1], "ping", 4);
            expect(poll(&readable, 1, 10000) == 1, "the byte comes");
            recv_all(ends[round / 2 % conns][0], in, 4);
        }
    for (int i = 0; i < conns; i++) {
        uint64_t hash = HASH_START;
        for (int round = 0; round < rounds; round++) {
            uint64_t word = rng_next(&seed);
            size_t size = word % 6 ? 1 + (word >> 8) % 1000 : 1 + (word >> 8) % sizeof out;
            int way = word >> 63;
            hash = carry(ends[i][way], ends[i][!way], &seed, size, hash);
        }
        /* blocking calls that cannot block: the bytes are there, or the room is */
        struct epoll_event event;
        send_all(ends[i][0], "ping", 4);
        expect(epoll_wait(set, &event, 1, 10000) == 1 && event.data.u32 == (uint32_t)i, "the right end is readable");
        recv_all(ends[i][1], in, 4);
        expect(!memcmp(in, "ping", 4), "ping");
        say("connection %d: %016lx", i, hash);
    }
    for (int i = 0; i < conns; i++) {
        send_all(ends[i][0], "last", 4);
        close(ends[i][0]);
        say("last: %zu", recv_upto(ends[i][1], in, 100));
        close(ends[i][1]);
    }
    say("done");
    return 0;
}
