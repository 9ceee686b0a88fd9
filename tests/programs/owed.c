/* A sender ends its stream with much unread, just when its reader has lent its descriptor to a program that knows of no lane, or reads on by
 * stdio.
 *   owed server PORT close|shutdown|exit|exec WAITS: whether its sends wait
 *   owed client PORT system|stdio PAUSE (ms, until it reads on) */
#include "bed.h"

#define BULK (64 << 20)
#define LAST 6000000

static unsigned char data[LAST];

static void write_all(int fd, size_t count) {
    for (size_t have = 0; have < count;) {
        ssize_t sent = send(fd, data + have % LAST, have % LAST + (count - have) > LAST ? LAST - have % LAST : count - have, 0);
        if (sent < 0 && errno == EAGAIN) poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1);
        else if (sent < 0) die("send");
        else have += sent;
    }
}

static void serve(int fd, const char *ends, int waits) {
    char go;
    warm_up_server(fd);
    if (!waits) fcntl(fd, F_SETFL, O_NONBLOCK);
    /* The ring grows by it. */
    write_all(fd, BULK);
    poll(&(struct pollfd){fd, POLLIN, 0}, 1, -1);
    recv_all(fd, &go, 1);
    write_all(fd, LAST);
    usleep(200000);
    if (!strcmp(ends, "exit")) exit(0);
    if (!strcmp(ends, "exec")) execlp("true", "true", NULL);
    if (!strcmp(ends, "shutdown")) {
        shutdown(fd, SHUT_WR);
        fcntl(fd, F_SETFL, 0);
        recv(fd, &go, 1, 0);
    }
    close(fd);
}

static void read_on(int fd, const char *by, int pause) {
    static unsigned char buffer[1 << 16];
    FILE *stream = NULL;
    size_t have = 0;
    ssize_t got;
    warm_up_client(fd);
    for (size_t left = BULK; left > 0; left -= got) {
        got = recv(fd, buffer, left < sizeof buffer ? left : sizeof buffer, 0);
        if (got <= 0) die("recv");
    }
    send_all(fd, "g", 1);
    usleep(100000);
    fcntl(fd, F_SETFD, 0);
    if (!strcmp(by, "system")) expect(system("true") == 0, "a shell");
    else stream = fdopen(fd, "r");
    usleep(pause * 1000);
    do {
        got = stream ? (ssize_t)fread(buffer, 1, sizeof buffer, stream) : recv(fd, buffer, sizeof buffer, 0);
        for (ssize_t i = 0; i < got; i++) expect(buffer[i] == data[have++], "the bytes that were sent");
    } while (got > 0);
    say("%s, then %s", have == LAST ? "all" : "less", got < 0 || (stream && ferror(stream)) ? "an error" : "the end");
}

int main(int argc, char **argv) {
    uint64_t seed = 7;
    expect(argc == 5, "usage: server|client PORT ENDS|READS WAITS|PAUSE");
    rng_fill(&seed, data, sizeof data);
    if (!strcmp(argv[1], "server")) serve(accept_one(listen_on(atoi(argv[2]))), argv[3], atoi(argv[4]));
    else read_on(connect_to(atoi(argv[2])), argv[3], atoi(argv[4]));
    return 0;
}
