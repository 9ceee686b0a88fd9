// Removes a file, and then executes printenv LD_PRELOAD in one of the ways that there are: executes FILE WAY
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define PROGRAM "/usr/bin/printenv"
#define VARIABLE "LD_PRELOAD"

int main(int argc, char **argv) {
    char *child[] = {PROGRAM, VARIABLE, NULL};
    const char *way = argc > 2 ? argv[2] : "";
    if (argc < 3 || unlink(argv[1])) return 2;
    // An environment of its own, as shells and interpreters make one, which it frees afterwards.
    char *preload = strdup(getenv(VARIABLE) - sizeof VARIABLE), *own[] = {strdup("A=1"), preload, NULL};
    int status = 0;
    pid_t pid = 0;
    if (!strcmp(way, "execve")) execve(PROGRAM, child, own);
    if (!strcmp(way, "execvpe")) execvpe(PROGRAM, child, own);
    if (!strcmp(way, "execveat")) execveat(AT_FDCWD, PROGRAM, child, own, 0);
    if (!strcmp(way, "fexecve")) fexecve(open(PROGRAM, O_RDONLY | O_CLOEXEC), child, own);
    if (!strcmp(way, "execv")) execv(PROGRAM, child);
    if (!strcmp(way, "execvp")) execvp(PROGRAM, child);
    if (!strcmp(way, "execl")) execl(PROGRAM, PROGRAM, VARIABLE, NULL);
    if (!strcmp(way, "execlp")) execlp(PROGRAM, PROGRAM, VARIABLE, NULL);
    if (!strcmp(way, "system")) return WEXITSTATUS(system(PROGRAM " " VARIABLE));
    if (!strcmp(way, "popen")) return WEXITSTATUS(pclose(popen(PROGRAM " " VARIABLE, "w")));
    if (!strcmp(way, "bad")) {
        // A bad pointer is the kernel's to refuse; a string that nobody may write to stays.
        char *fixed[] = {VARIABLE "=" "/x/libshunpike.so", NULL}, **volatile nowhere = (char **)8;
        if (execve(PROGRAM, child, nowhere) != -1) return 3;
        execve(PROGRAM, child, fixed);
    }
    if (!strcmp(way, "filtered")) {
        // As a sandbox that ends who makes a call that it does not know.
        struct sock_filter lines[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_faccessat, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog filter = {sizeof lines / sizeof *lines, lines};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 3;
        execve(PROGRAM, child, own);
    }
    if (!strcmp(way, "posix_spawn")) posix_spawn(&pid, PROGRAM, NULL, NULL, child, own);
    if (!strcmp(way, "posix_spawnp")) posix_spawnp(&pid, PROGRAM, NULL, NULL, child, own);
    if (!strcmp(way, "vfork") && !(pid = vfork())) {
        execve(PROGRAM, child, own);
        _exit(4);
    }
    if (pid <= 0 || waitpid(pid, &status, 0) != pid) return 5;
    for (int i = 0; own[i]; i++) free(own[i]);
    return WEXITSTATUS(status);
}
