/* A descriptor is closed, in a way that a library in front of libc sees or not, and its number is free: the next connection's
 * handshake may bring the library itself a descriptor of that number.
 *   stale server PORT
 *   stale client listener|set|stream|lane close|syscall|stdio|unseen PORT */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/syscall.h>

static void echo(int fd) {
    char bytes[1024];
    for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;) send_all(fd, bytes, got);
    close(fd);
}

static int made(const char *what, int port) {
    if (!strcmp(what, "listener")) return listen_on(0);
    if (!strcmp(what, "set")) return epoll_create1(EPOLL_CLOEXEC);
    int fd = connect_to(port);
    if (!strcmp(what, "lane")) warm_up_client(fd);
    return fd;
}

static void end(const char *how, int fd) {
    if (!strcmp(how, "close")) close(fd);
    else if (!strcmp(how, "syscall")) syscall(SYS_close, fd);
    else if (!strcmp(how, "stdio")) fclose(fdopen(fd, "r+"));
    else unseen_call(SYS_close, fd, 0, 0, 0);
}

int main(int argc, char **argv) {
    expect(argc == 3 || argc == 5, "usage: server PORT, or client WHAT HOW PORT");
    int port = atoi(argv[argc - 1]);
    if (argc == 3) {
        for (int listener = listen_on(port);;) echo(accept_one(listener));
    }
    int first = made(argv[2], port), second = socket(AF_INET, SOCK_STREAM, 0);
    end(argv[3], first);
    struct sockaddr_in to = bed_address(port);
    if (connect(second, (struct sockaddr *)&to, sizeof to)) die("connect");
    warm_up_client(second);
    unsigned char out[1000], in[1000];
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        rng_fill(&seed, out, sizeof out);
        send_all(second, out, sizeof out);
        recv_all(second, in, sizeof in);
        expect(!memcmp(in, out, sizeof in), "the bytes come back");
    }
    int next = open("/dev/null", O_RDWR);
    say("the number is free: %s", next == first ? "yes" : "no");
    expect(write(next, out, sizeof out) == sizeof out && !read(next, in, sizeof in), "it is a file's now");
    close(next);
    return 0;
}
