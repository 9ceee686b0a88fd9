/* Clients that end by exit(), without a close(), and a server that reads to the stream's end: how long after.
 *   exits server|client PORT
 * The client ends once it has the last answer. */
#include "bed.h"

enum { CLIENTS = 15, ANSWERED = 60, LATE_NS = 5000000 };

static void server(int port) {
    int listener = listen_on(port), late = 0;
    for (int i = 0; i < CLIENTS; i++) {
        int fd = accept_one(listener);
        char byte;
        warm_up_server(fd);
        for (int j = 0; j < ANSWERED; j++) recv_all(fd, &byte, 1), send_all(fd, &byte, 1);
        int64_t answered = now_ns();
        expect(recv_upto(fd, &byte, 1) == 0, "the stream ends");
        late += now_ns() - answered > LATE_NS;
        close(fd);
    }
    say("%s", late > CLIENTS / 2 ? "the end comes late" : "ended");
}

static void client(int port) {
    int fd = connect_to(port);
    char byte = 'x';
    warm_up_client(fd);
    for (int j = 0; j < ANSWERED; j++) send_all(fd, &byte, 1), recv_all(fd, &byte, 1);
    exit(0);
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    (strcmp(argv[1], "server") ? client : server)(atoi(argv[2]));
    return 0;
}
