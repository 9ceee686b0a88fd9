// starts HOW PROGRAM [ARGUMENT...]: executes PROGRAM in a child that is made in one of several ways, and says how it ended, and whether
// anything is left that the parent can see.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __GLIBC__
#define execveat(...) syscall(SYS_execveat, __VA_ARGS__) // musl has none
#endif

extern char **environ;
static volatile sig_atomic_t ended;
static int failure;

static void count(int signal) {
    (void)signal;
    ended++;
}

static void execute(const char *how, char **argv) {
    int flags = strstr(how, "cloexec") ? O_CLOEXEC : 0;
    if (strstr(how, "execvpe")) execvpe(argv[0], argv, environ);
    else if (strstr(how, "execvp")) execvp(argv[0], argv);
    else if (strstr(how, "fexecve")) fexecve(open(argv[0], O_PATH | O_CLOEXEC), argv, environ);
    else if (strstr(how, "execveat-empty")) execveat(open(argv[0], O_RDONLY | flags), "", argv, environ, AT_EMPTY_PATH);
    else if (strstr(how, "execveat")) {
        char *slash = strrchr(argv[0], '/');
        *slash = 0;
        int directory = open(argv[0], O_PATH | O_CLOEXEC | O_DIRECTORY);
        *slash = '/';
        execveat(directory, slash + 1, argv, environ, 0);
    } else if (strstr(how, "execve")) execve(argv[0], argv, environ);
    else if (strstr(how, "execlp")) execlp(argv[0], argv[0], argv[1], argv[1] ? argv[2] : 0, (char *)0);
    else if (strstr(how, "execle")) execle(argv[0], argv[0], argv[1], argv[1] ? argv[2] : 0, (char *)0, environ);
    else if (strstr(how, "execl")) execl(argv[0], argv[0], argv[1], argv[1] ? argv[2] : 0, (char *)0);
    else if (strstr(how, "execv")) execv(argv[0], argv);
    else if (strstr(how, "number")) syscall(SYS_execve, argv[0], argv, environ);
    failure = errno;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *how = argv[1];
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, 0);
    pid_t child = -1;
    if (strstr(how, "itself")) {
        execute(how, argv + 2);
        printf("failed: %s\n", strerror(failure));
        return 1;
    } else if (strstr(how, "system")) {
        int status = system(argv[2]);
        printf("system: %d\n", status);
        return 0;
    } else if (strstr(how, "posix_spawnp")) {
        failure = posix_spawnp(&child, argv[2], 0, 0, argv + 2, environ);
    } else if (strstr(how, "posix_spawn")) {
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        if (strstr(how, "group")) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        failure = posix_spawn(&child, argv[2], 0, &attributes, argv + 2, environ);
    } else if (strstr(how, "vfork")) {
        child = vfork();
        if (child == 0) {
            execute(how, argv + 2);
            _exit(99);
        }
    } else {
        int told[2];
        if (pipe2(told, O_CLOEXEC)) return 2;
        child = fork();
        if (child == 0) {
            execute(how, argv + 2);
            if (write(told[1], &failure, sizeof failure) < 0) _exit(98);
            _exit(99);
        }
        close(told[1]);
        if (read(told[0], &failure, sizeof failure) < 0) return 2;
        close(told[0]);
    }
    int status = 0;
    pid_t waited = failure && strstr(how, "spawn") ? child : waitpid(child, &status, 0);
    printf("%s, %s, ended: %d, signal: %d, exited: %d\n", waited == child ? "the child" : "another", strerror(failure), (int)ended,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
    usleep(20000);
    waited = waitpid(-1, 0, __WALL);
    printf("another child: %d, %s; SIGCHLD: %d\n", (int)waited, strerror(errno), (int)ended);
    printf("the next descriptor: %d\n", dup(0));
    return 0;
}
