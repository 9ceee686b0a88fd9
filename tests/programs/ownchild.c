/* A process connects to its own listening socket, which its forked child accepts from, and only reads.
 *   ownchild ACCEPTOR ROUNDS        ACCEPTOR: child, or select: the child waits in select() before it accepts
 * Says how long each connection took, milliseconds. */
#include "bed.h"
#include <sys/select.h>
#include <sys/wait.h>

static void serve(int listener, int waits, int rounds) {
    while (rounds-- > 0) {
        if (waits) {
            fd_set readable;
            FD_ZERO(&readable);
            FD_SET(listener, &readable);
            expect(select(listener + 1, &readable, NULL, NULL, NULL) == 1, "somebody connects");
        }
        int fd = accept_one(listener);
        send_all(fd, "Hello", 5);
        char byte;
        expect(recv(fd, &byte, 1, 0) == 0, "the client's close is seen");
        close(fd);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: child|select ROUNDS");
    int port = 0, rounds = atoi(argv[2]), listener = listen_on(port), status;
    struct sockaddr_in bound;
    socklen_t size = sizeof bound;
    if (getsockname(listener, (struct sockaddr *)&bound, &size)) die("getsockname");
    pid_t child = fork();
    if (child == 0) serve(listener, !strcmp(argv[1], "select"), rounds);
    for (int round = 0; round < rounds; round++) {
        char hello[5];
        int64_t began = now_ms();
        int fd = connect_to(ntohs(bound.sin_port));
        recv_all(fd, hello, sizeof hello);
        close(fd);
        say("%ld", (long)(now_ms() - began));
    }
    expect(waitpid(child, &status, 0) == child && status == 0, "the child ends");
    return 0;
}
