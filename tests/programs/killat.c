/* Runs a program and kills it (SIGKILL, all its threads) at its N-th stop at a system call: killat N PROGRAM [ARG...]
 * Entries and exits both count, so that each side of each call is a moment to die. Says at which it was, or that the
 * program ended before; ends with 0 in both cases. */
#include "bed.h"
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    expect(argc > 2, "usage: killat N PROGRAM [ARG...]");
    long at = atol(argv[1]), stops = 0;
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) die("PTRACE_TRACEME");
        raise(SIGSTOP);
        execv(argv[2], argv + 2);
        die("exec");
    }
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL, options)) die("PTRACE_SETOPTIONS");
    if (ptrace(PTRACE_SYSCALL, child, NULL, NULL)) die("PTRACE_SYSCALL");
    for (pid_t who; (who = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (who != child) continue;
            say(stops >= at ? "killed at %ld" : "ended after %ld", stops);
            return 0;
        }
        int signal = WSTOPSIG(status), passed = 0;
        if (signal == (SIGTRAP | 0x80)) {
            if (++stops == at) kill(child, SIGKILL);
        } else if (signal != SIGTRAP && signal != SIGSTOP) {
            passed = signal;
        }
        /* A thread that was killed meanwhile is not there any more. */
        if (ptrace(PTRACE_SYSCALL, who, NULL, passed) && errno != ESRCH) die("PTRACE_SYSCALL");
    }
    die("waitpid");
}
