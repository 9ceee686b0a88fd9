/* A client that is on a lane spawns a program, which inherits the connection, and goes on; a server that answers.
 *   spawns server PORT
 *   spawns client PORT HOW CHILD
 *   spawns child FD CHILD
 * HOW: spawn (posix_spawn), vfork, fork (and exec), or none (posix_spawn of a program that is not there)
 * CHILD: what it does with the connection. closes, and stays until its standard input ends; keeps it until then; ends at once;
 *        leaves it to a child of its own, which keeps it until then; uses it: sends a line, which the server answers
 * The client prints "spawned", has dialogues all the time, and ends with its standard input. */
#include "bed.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static void exchange(int fd) {
    char message[64] = "a line of the client's", back[64];
    send_all(fd, message, sizeof message);
    recv_all(fd, back, sizeof back);
    expect(!memcmp(message, back, sizeof back), "the answer is what was sent");
}

static void child(int fd, const char *how) {
    char byte;
    if (!strcmp(how, "uses")) exchange(fd);
    if (!strcmp(how, "closes")) close(fd);
    if (!strcmp(how, "leaves") && fork()) _exit(0);
    if (strcmp(how, "ends"))
        while (read(0, &byte, 1) > 0) continue;
    _exit(0);
}

static void *idle(void *unused) {
    for (;;) pause();
    return unused;
}

static pid_t start(const char *self, const char *how, int fd, const char *what, int input) {
    char number[16], *arguments[] = {(char *)self, "child", number, (char *)what, NULL};
    pid_t pid = -1;
    snprintf(number, sizeof number, "%d", fd);
    if (!strcmp(how, "spawn") || !strcmp(how, "none")) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, input, 0);
        int error = posix_spawn(&pid, strcmp(how, "none") ? self : "/nonexistent", &actions, NULL, arguments, environ);
        expect(!error == !!strcmp(how, "none"), "the program is there, or not");
        return pid;
    }
    pid = strcmp(how, "vfork") ? fork() : vfork();
    if (pid == 0) {
        dup2(input, 0);
        execv(self, arguments);
        _exit(72);
    }
    return pid;
}

int main(int argc, char **argv) {
    expect(argc >= 3, "usage: server PORT, client PORT HOW CHILD");
    if (!strcmp(argv[1], "child")) child(atoi(argv[2]), argv[3]);
    if (!strcmp(argv[1], "server")) {
        int fd = accept_one(listen_on(atoi(argv[2])));
        char message[64];
        for (ssize_t count; (count = recv(fd, message, sizeof message, 0)) > 0;) send_all(fd, message, count);
        return 0;
    }
    int fd = connect_to(atoi(argv[2])), ends[2], spawned = 0;
    fcntl(fd, F_SETFD, 0);
    if (pipe2(ends, O_CLOEXEC)) die("pipe");
    struct pollfd told = {0, POLLIN, 0};
    for (char byte;;) {
        exchange(fd);
        usleep(500);
        if (poll(&told, 1, 0) == 0) continue;
        /* A line: the child is started; another one: it ends. */
        if (read(0, &byte, 1) != 1) break;
        if (spawned++) {
            close(ends[1]);
            ends[1] = -1;
        } else {
            /* The server's answers are one stream: nobody else sends meanwhile. */
            pid_t pid = start(argv[0], argv[3], fd, argv[4], ends[0]);
            if (pid > 0 && (!strcmp(argv[4], "uses") || !strcmp(argv[4], "ends") || !strcmp(argv[4], "leaves"))) {
                if (!strcmp(argv[4], "uses")) close(ends[1]);
                expect(waitpid(pid, NULL, 0) == pid, "the child ends");
            }
            /* A thread that is younger than the child: it has the connection, as its process has. */
            pthread_t younger;
            if (pthread_create(&younger, NULL, idle, NULL)) die("thread");
            close(ends[0]);
            printf("spawned\n");
            fflush(stdout);
        }
    }
    return 0;
}
