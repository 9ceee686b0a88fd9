/* Buffers that the program made small bound what is in flight: a peer that stops reading is noticed soon.
 *   bounded server|client PORT */
#include "bed.h"

static const int small = 4096;
static char data[8192];

static void serve(int port) {
    int listener = listen_on(port);
    if (setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small)) die("SO_RCVBUF");
    int fd = accept_one(listener);
    warm_up_server(fd);
    tell();
    await();
    size_t total = 0, got;
    while ((got = recv_upto(fd, data, sizeof data)) > 0) total += got;
    say("received some: %d", total > 4096);
}

static void ask(int port) {
    int fd = connect_to(port);
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small)) die("SO_SNDBUF");
    warm_up_client(fd);
    await();
    size_t total = 0;
    ssize_t sent;
    while ((sent = send(fd, data, sizeof data, MSG_DONTWAIT)) > 0 && total < 1 << 20) total += sent;
    say("then: %s, less than 64 KiB: %d", outcome(sent), total < 65536);
    tell();
    close(fd);
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    int is_server = !strcmp(argv[1], "server");
    sync_open(is_server);
    is_server ? serve(atoi(argv[2])) : ask(atoi(argv[2]));
    say("done");
    return 0;
}
