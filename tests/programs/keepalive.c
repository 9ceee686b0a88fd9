/* Keepalive settings of both ends as the program sees them, before, during and after a lane, and what it sets meanwhile.
 *   keepalive server PORT ROUNDS PAUSE_MS      keepalive client PORT ROUNDS PAUSE_MS
 * In the middle of ROUNDS it waits for the test's word: then the connection is on TCP again, or about to be. */
#include "bed.h"

static void show(int fd) {
    static const struct { int level, name; } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE}, {IPPROTO_TCP, TCP_KEEPIDLE}, {IPPROTO_TCP, TCP_KEEPINTVL}, {IPPROTO_TCP, TCP_KEEPCNT}};
    int values[4];
    for (int i = 0; i < 4; i++) {
        socklen_t size = sizeof values[i];
        if (getsockopt(fd, options[i].level, options[i].name, &values[i], &size)) die("getsockopt");
    }
    say("%d: every %d s after %d s, %d times", values[0], values[2], values[1], values[3]);
}

static void set(int fd, int level, int name, int value) {
    if (setsockopt(fd, level, name, &value, sizeof value)) die("setsockopt");
}

static void talk(int fd, int is_server, int rounds, int pause_ms) {
    char message[50] = {0};
    for (int round = 0; round < rounds; round++) {
        if (is_server) recv_all(fd, message, sizeof message);
        else message[0] = round;
        send_all(fd, message, sizeof message);
        if (!is_server) recv_all(fd, message, sizeof message);
        expect(message[0] == (char)round, "the answer is the message");
        if (!is_server && pause_ms) usleep(pause_ms * 1000);
    }
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|client PORT ROUNDS PAUSE_MS");
    int is_server = !strcmp(argv[1], "server"), rounds = atoi(argv[3]), pause_ms = atoi(argv[4]), fd;
    sync_open(is_server);
    if (is_server) {
        int listener = listen_on(atoi(argv[2]));
        set(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
        fd = accept_one(listener);
        warm_up_server(fd);
    } else {
        fd = connect_to(atoi(argv[2]));
        show(fd);
        warm_up_client(fd);
    }
    show(fd);
    talk(fd, is_server, rounds, pause_ms);
    show(fd);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 4000);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
    show(fd);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, !is_server);
    show(fd);
    if (!is_server) say("open"), await();
    talk(fd, is_server, rounds, 0);
    show(fd);
    if (!is_server) say("over"), await();
    close(fd);
    say("done");
    return 0;
}
