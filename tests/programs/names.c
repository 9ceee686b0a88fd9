/* A server that forks for each connection: the child has a second number of it, and uses both by turns.
 *   names server|client PORT */
#include "bed.h"
#include <sys/wait.h>

enum { ROUNDS = 400, ANSWER = 8 };

static void serve(int fd) {
    int ends[2] = {fd, dup(fd)};
    char byte;
    for (int round = 0; recv_upto(ends[round % 2], &byte, 1) == 1; round++)
        for (char i = 0; i < ANSWER; i++) send_all(ends[i % 2], &i, 1);
}

static void server(int port) {
    int listener = listen_on(port), fd = accept_one(listener), status;
    pid_t child = fork();
    if (child == 0) {
        close(listener);
        serve(fd);
        _exit(0);
    }
    close(fd);
    expect(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child has served");
}

static void client(int port) {
    int fd = connect_to(port);
    for (int round = 0; round < ROUNDS; round++) {
        char byte = 'x', answer[ANSWER];
        send_all(fd, &byte, 1);
        recv_all(fd, answer, sizeof answer);
        for (char i = 0; i < ANSWER; i++) expect(answer[(int)i] == i, "the answer is in order");
        usleep(1000); /* at a walk, so that a lane opens */
    }
    close(fd);
    say("in order");
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    (strcmp(argv[1], "server") ? client : server)(atoi(argv[2]));
    return 0;
}
