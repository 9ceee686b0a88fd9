/* What libc's syscall(2) hands to the kernel, and what it gives back: every number with six arguments, as a tracer sees it, with each
 * kind of result. None of these calls takes place: the tracer puts a result in the place of each.
 *   syscalls server|client traced PORT     a child of the client makes them, which holds the connection, too */
#include "bed.h"
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#define NUMBERS 512 /* more than there are (470 in Linux 6.18), and those are asked for, too */
#define RESULTS 3

static unsigned long argument(long number, int at) {
    uint64_t seed = number * 8 + at + 1;
    /* Sets of descriptors are looked at: none. */
    if ((number == SYS_select || number == SYS_pselect6) && at >= 1 && at <= 3) return 0;
    /* So is a list of jobs. */
    if (number == SYS_io_submit && at == 1) return 0;
    /* And messages, for descriptors that another program gets. */
    static struct msghdr empty;
    if (number == SYS_clone3 && at == 1) return 0;
    /* And what the kernel says of a ring that it has made. */
    static char parameters[120];
    if (number == SYS_io_uring_setup && at == 1) return (unsigned long)parameters;
    if (number == SYS_sendmsg && at == 1) return (unsigned long)&empty;
    if (number == SYS_sendmmsg && at == 2) return 0;
    return rng_next(&seed);
}

/* A plain result, one of 64 bits, and a failure. */
static long result_of(long number, int kind) {
    return kind == 0 ? number : kind == 1 ? 0x1122334455667788 + number : -(number % 133 + 1);
}

static void ask(void) {
    for (long number = 0; number < NUMBERS; number++) {
        for (int kind = 0; kind < RESULTS; kind++) {
            unsigned long a[6];
            for (int at = 0; at < 6; at++) a[at] = argument(number, at);
            /* The tracer knows by it which result is wanted; it is no descriptor of ours either. */
            a[0] = (a[0] & ~0xffful) | kind;
            errno = 0;
            long got = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]), should = result_of(number, kind);
            int error = errno;
            if (should < 0 ? got != -1 || error != -should : got != should || error != 0) {
                fprintf(stderr, "syscall(%ld) gives %ld (errno %d) in the place of %ld\n", number, got, error, should);
                _exit(72);
            }
        }
    }
    _exit(0);
}

/* Whether this is one of the calls that `ask` makes; others are whoever's that make it. */
static int is_asked(const struct user_regs_struct *regs) {
    unsigned long first = argument(regs->orig_rax, 0);
    return regs->orig_rax < NUMBERS && (regs->rdi & ~0xffful) == (first & ~0xffful) && (regs->rdi & 0xfff) < RESULTS;
}

static void traced_client(int fd) {
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) die("PTRACE_TRACEME");
        raise(SIGSTOP);
        ask();
    }
    int status, seen = 0;
    waitpid(child, &status, 0);
    if (ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) die("PTRACE_SETOPTIONS");
    for (;;) {
        struct user_regs_struct regs;
        if (ptrace(PTRACE_SYSCALL, child, 0, 0)) die("PTRACE_SYSCALL");
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) break;
        expect(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80), "it stops at its calls only");
        if (ptrace(PTRACE_GETREGS, child, 0, &regs)) die("PTRACE_GETREGS");
        long number = regs.orig_rax;
        int kind = regs.rdi & 0xfff, is_ours = is_asked(&regs);
        if (is_ours) {
            unsigned long got[] = {regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9};
            for (int at = 0; at < 5; at++)
                if (got[at] != argument(number, at + 1)) fprintf(stderr, "syscall(%ld): argument %d is %lx\n", number, at + 2, got[at]), exit(73);
            seen++;
            regs.orig_rax = -1;
            if (ptrace(PTRACE_SETREGS, child, 0, &regs)) die("PTRACE_SETREGS");
        }
        if (ptrace(PTRACE_SYSCALL, child, 0, 0)) die("PTRACE_SYSCALL");
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) break;
        if (is_ours) {
            if (ptrace(PTRACE_GETREGS, child, 0, &regs)) die("PTRACE_GETREGS");
            regs.rax = result_of(number, kind);
            if (ptrace(PTRACE_SETREGS, child, 0, &regs)) die("PTRACE_SETREGS");
        }
    }
    expect(WEXITSTATUS(status) == 0, "every result is what the tracer gave");
    say("%d calls", seen);
    close(fd);
}

static void waits_for_the_end(int fd) {
    char byte;
    say("its end: %s", outcome(recv(fd, &byte, 1, 0)));
}

static const struct bed_case cases[] = {
    {"traced", waits_for_the_end, traced_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
