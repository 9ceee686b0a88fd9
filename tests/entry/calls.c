/* What a program may rely on when it makes system calls, and a patched one must still have. Each case prints what it found, which is the same
 * with and without the patch.
 *   calls CASE... */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435
#endif

extern char **environ;

static void expect(int holds, const char *what) {
    if (!holds) {
        printf("not so: %s (errno %d)\n", what, errno);
        fflush(stdout);
        _exit(9);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Everything that the kernel keeps: registers in, registers out. */
struct registers {
    uint64_t general[16], flags;
    unsigned char vectors[16][16];
} in, out;

__asm__(".globl call_with\n"
        "call_with:\n" /* the number in rdi, the stack to stand on in rsi, or 0 */
        "  push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
        "  mov %rsp, saved(%rip)\n"
        "  mov %rdi, %rax\n"
        "  test %rsi, %rsi; cmovnz %rsi, %rsp\n"
        "  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
        "  movups in+136+16*\\n(%rip), %xmm\\n\n"
        "  .endr\n"
        "  mov in+0(%rip), %rbx; mov in+8(%rip), %rbp; mov in+16(%rip), %rdi; mov in+24(%rip), %rsi; mov in+32(%rip), %rdx\n"
        "  mov in+40(%rip), %r8; mov in+48(%rip), %r9; mov in+56(%rip), %r10; mov in+64(%rip), %r12; mov in+72(%rip), %r13\n"
        "  mov in+80(%rip), %r14\n"
        /* carry, overflow and sign, then another number than what was compared */
        "  mov $0x7fffffff, %r15d; add $1, %r15d; stc\n"
        "  mov in+88(%rip), %r15\n"
        "  nop\n"
        "  syscall\n"
        "  mov %rbx, out+0(%rip); mov %rbp, out+8(%rip); mov %rdi, out+16(%rip); mov %rsi, out+24(%rip); mov %rdx, out+32(%rip)\n"
        "  mov %r8, out+40(%rip); mov %r9, out+48(%rip); mov %r10, out+56(%rip); mov %r12, out+64(%rip); mov %r13, out+72(%rip)\n"
        "  mov %r14, out+80(%rip); mov %r15, out+88(%rip); mov %rsp, out+96(%rip)\n"
        "  mov saved(%rip), %rsp\n"
        "  pushf; popq out+128(%rip)\n"
        "  .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
        "  movups %xmm\\n, out+136+16*\\n(%rip)\n"
        "  .endr\n"
        "  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "  ret\n"
        ".local saved\n.comm saved,8,8\n");
extern long call_with(long number, void *stack);

static void registers(void) {
    for (int round = 0; round < 1000; round++) {
        for (size_t i = 0; i < sizeof in; i++) ((unsigned char *)&in)[i] = i * 7 + round;
        long got = call_with(SYS_getppid, NULL);
        expect(got == getppid(), "the result");
        expect(!memcmp(in.general, out.general, 96), "general registers are kept");
        expect(!memcmp(in.vectors, out.vectors, sizeof in.vectors), "vector registers are kept");
        expect((out.flags & 0x8d5) == 0x891 || (out.flags & 0x8d5) == 0x895 || (out.flags & 0x8d5) == 0x885, "flags are kept");
    }
    printf("flags %llx\n", (unsigned long long)(out.flags & 0x8d5));
}

/* A leaf on the last byte of its stack, with no memory below; and one whose red zone is in use. */
static void stack(void) {
    char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page, 4096, PROT_NONE);
    expect(call_with(SYS_getppid, page + 4096) == getppid(), "without a stack");
    expect(out.general[12] == (uint64_t)(page + 4096), "the stack pointer is kept");
    memset(page + 4096, 0x5a, 4096);
    expect(call_with(SYS_getppid, page + 8192) == getppid(), "with a red zone");
    for (int i = 4096; i < 8192; i++) expect(page[i] == 0x5a, "the red zone is untouched");
    puts("no stack is used");
}

static volatile int handled;
static void handler(int number) {
    (void)number;
    handled++;
    expect(getppid() > 0, "a call in a handler");
}

static void handle(int number, void (*with)(int), int flags) {
    struct sigaction action = {.sa_handler = with, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

static void every(int microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void restarts(void) {
    for (int restart = 0; restart < 2; restart++) {
        int pipes[2];
        expect(pipe(pipes) == 0, "pipe");
        handle(SIGALRM, handler, restart ? SA_RESTART : 0);
        handled = 0;
        pid_t child = fork();
        if (child == 0) {
            usleep(100000);
            expect(write(pipes[1], "x", 1) == 1, "write");
            _exit(0);
        }
        every(10000);
        char byte = 0;
        long got = read(pipes[0], &byte, 1);
        int error = errno;
        every(0);
        printf("restart %d: %ld %d %c %d\n", restart, got, got < 0 ? error : 0, byte ? byte : '-', handled > (restart ? 3 : 0));
        while (waitpid(child, NULL, 0) < 0) {}
        close(pipes[0]), close(pipes[1]);
    }
    struct timespec pause = {0, 50000000}, left;
    handle(SIGALRM, handler, SA_RESTART);
    every(20000);
    printf("sleep %d\n", nanosleep(&pause, &left));
    every(0);
}

static sigjmp_buf back;
static void jump(int number) {
    (void)number;
    siglongjmp(back, 1);
}

/* Handlers that never return, out of waiting calls and out of quick ones. */
static void jumps(void) {
    int pipes[2];
    expect(pipe(pipes) == 0, "pipe");
    handle(SIGALRM, jump, 0);
    volatile int jumped = 0;
    for (; jumped < 2000; jumped++) {
        if (sigsetjmp(back, 1)) continue;
        struct itimerval once = {{0, 0}, {0, 50 + jumped % 50}};
        setitimer(ITIMER_REAL, &once, NULL);
        if (jumped % 2) {
            char byte;
            read(pipes[0], &byte, 1);
        }
        for (;;) getppid();
    }
    every(0);
    printf("jumped %d\n", jumped);
}

static volatile int depth, deepest;
static void nested(int number) {
    volatile uint64_t pattern[64];
    for (int i = 0; i < 64; i++) pattern[i] = number * 1000 + i;
    if (++depth > deepest) deepest = depth;
    for (int i = 0; i < 20; i++) expect(getppid() > 0, "a call in a handler");
    if (depth < 6) raise(number == SIGUSR1 ? SIGUSR2 : SIGUSR1);
    depth--;
    for (int i = 0; i < 64; i++) expect(pattern[i] == (uint64_t)(number * 1000 + i), "a handler's memory is its own");
}

/* Handlers within handlers, on an alternate stack and without, while calls are made. */
static void handlers(void) {
    static char alternate[1 << 18];
    for (int on = 0; on < 2; on++) {
        stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate, .ss_flags = on ? 0 : SS_DISABLE};
        expect(sigaltstack(&stack, NULL) == 0, "sigaltstack");
        int flags = SA_RESTART | SA_NODEFER | (on ? SA_ONSTACK : 0);
        handle(SIGALRM, nested, flags), handle(SIGUSR1, nested, flags), handle(SIGUSR2, nested, flags);
        every(300);
        for (double end = now() + 0.3; now() < end;)
            for (int i = 0; i < 100; i++) expect(getppid() > 0, "a call");
        every(0);
        stack_t old;
        expect(sigaltstack(NULL, &old) == 0 && old.ss_flags == (on ? 0 : SS_DISABLE), "the alternate stack is as it was set");
        printf("deepest %d\n", deepest > 5);
    }
    expect(syscall(SYS_sigaltstack, 8, NULL) == -1 && errno == EFAULT, "no alternate stack");
}

static int mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}

static void *caller(void *argument) {
    for (int i = 0; i < 20; i++) expect(getppid() > 0 && syscall(SYS_gettid) != getpid(), "calls of a thread");
    return argument;
}

static pthread_barrier_t barrier;
static void *waiter(void *argument) {
    pthread_barrier_wait(&barrier);
    return caller(argument);
}

static void threads(void) {
    pthread_t all[300];
    int before = 0;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 20; i++) expect(pthread_create(&all[i], NULL, caller, all + i) == 0, "pthread_create");
        for (int i = 0; i < 20; i++) {
            void *result;
            expect(pthread_join(all[i], &result) == 0 && result == all + i, "pthread_join");
        }
        if (round == 20) before = mappings();
    }
    expect(mappings() < before + 60, "what threads have is used again");
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&barrier, NULL, 300);
    for (int i = 0; i < 300; i++) expect(pthread_create(&all[i], &small, waiter, all + i) == 0, "pthread_create");
    for (int i = 0; i < 300; i++) expect(pthread_join(all[i], NULL) == 0, "pthread_join");
    puts("threads");
}

static void *forker(void *argument) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            expect(pthread_create(&thread, NULL, caller, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread of a fork");
            _exit(i);
        }
        int status;
        expect(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == i, "waitpid");
    }
    return argument;
}

static void children(void) {
    pthread_t all[4];
    for (int i = 0; i < 4; i++) expect(pthread_create(&all[i], NULL, forker, NULL) == 0, "pthread_create");
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    int status;
    for (int i = 0; i < 200; i++) {
        pid_t child = vfork();
        if (child == 0) {
            if (i % 4 == 0) _exit(i % 100);
            if (i % 4 == 1) syscall(SYS_exit, i % 100);
            if (i % 4 == 2) execl("/nonexistent", "x", NULL), _exit(i % 100);
            execl("/bin/sh", "sh", "-c", "exit 3", NULL);
        }
        expect(waitpid(child, &status, 0) == child, "waitpid");
        expect(WEXITSTATUS(status) == (i % 4 == 3 ? 3 : i % 100), "a vfork child's end");
    }
    char *const arguments[] = {"sh", "-c", "exit 4", NULL};
    for (int i = 0; i < 20; i++) {
        pid_t child;
        expect(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0, "posix_spawn");
        expect(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 4, "a spawned child's end");
    }
    expect(posix_spawn(&(pid_t){0}, "/nonexistent", NULL, NULL, arguments, environ) == ENOENT, "nothing to spawn");
    pthread_t thread;
    expect(pthread_create(&thread, NULL, caller, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread afterwards");
    expect(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD, "no child is left that is not ours");
    puts("children");
}

static void *reader(void *argument) {
    char byte;
    read(*(int *)argument, &byte, 1);
    return NULL;
}

static void cancellation(void) {
    int pipes[2];
    expect(pipe(pipes) == 0, "pipe");
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        expect(pthread_create(&thread, NULL, reader, pipes) == 0, "pthread_create");
        usleep(i % 2 ? 2000 : 0);
        pthread_cancel(thread);
        void *result;
        expect(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED, "cancelled");
    }
    puts("cancelled");
}

/* Threads that do not come about, and what comes back then. */
static void failures(void) {
    for (int i = 0; i < 300; i++) {
        expect(syscall(SYS_clone, 0x100 | 0x10000, 0, 0, 0, 0) == -1 && errno == EINVAL, "a thread without handlers");
        expect(syscall(SYS_clone3, 8, 88) == -1 && errno == EFAULT, "clone3 of nothing");
        expect(syscall(SYS_clone3, NULL, 0) == -1 && errno == EINVAL, "clone3 of no size");
        expect(syscall(SYS_clone, 0x4100 | 0x10000, 0, 0, 0, 0) == -1 && errno == EINVAL, "vfork of a thread without handlers");
    }
    expect(syscall(SYS_write, 1, 8, 1) == -1 && errno == EFAULT, "write of nothing");
    expect(syscall(100000) == -1 && errno == ENOSYS, "no such call");
    expect(syscall(-1) == -1 && errno == ENOSYS, "no such call");
    threads();
}

static void confined(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_SECCOMP, 1);
        write(1, "strict\n", 7);
        syscall(SYS_exit, 5);
    }
    expect(waitpid(child, &status, 0) == child, "waitpid");
    printf("%d\n", status);
}

/* A program that wants the GS base for itself. */
static void segment(void) {
    static uint64_t own = 0x1234, read;
    expect(syscall(SYS_arch_prctl, 0x1001, &own) == 0, "ARCH_SET_GS");
    __asm__ volatile("mov %%gs:0, %0" : "=r"(read));
    expect(read == 0x1234, "its own GS");
    expect(getppid() > 0, "a call afterwards");
    threads();
    __asm__ volatile("mov %%gs:0, %0" : "=r"(read));
    printf("%d\n", read == 0x1234);
}

static volatile int stopping;
static void *loop(void *argument) {
    while (!stopping) expect(getppid() > 0, "a call");
    return argument;
}

/* Signals in the middle of everything. */
static void storm(void) {
    pthread_t all[4];
    handle(SIGALRM, handler, SA_RESTART);
    for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, loop, NULL);
    every(100);
    for (double end = now() + 0.5; now() < end;) {
        pthread_t thread;
        expect(pthread_create(&thread, NULL, caller, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread");
        pid_t child = fork();
        if (child == 0) _exit(getppid() > 0);
        int status;
        while (waitpid(child, &status, 0) < 0) {}
        expect(WEXITSTATUS(status) == 1, "a child");
    }
    stopping = 1;
    every(0);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
    printf("%d\n", handled > 100);
}

/* Text that changes, and code made at run time that makes calls of its own: it goes round the patch, and works. */
__attribute__((noinline, aligned(4096))) int number(void) {
    int n;
    __asm__ volatile("mov $0x11111111, %0" : "=r"(n));
    return n;
}

static void rewrites(void) {
    unsigned char *text = (unsigned char *)number;
    expect(number() == 0x11111111, "a number");
    expect(mprotect(text, 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    for (int i = 0; i < 32; i++)
        if (text[i] == 0x11 && text[i + 3] == 0x11) {
            memset(text + i, 0x22, 4);
            break;
        }
    expect(mprotect(text, 4096, PROT_READ | PROT_EXEC) == 0, "mprotect");
    expect(number() == 0x22222222, "another number");
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\xb8\x6e\0\0\0\x0f\x05\xc3", 8);
    expect(((int (*)(void))code)() == getppid(), "made code");
    puts("rewritten");
}

static void executes(void) {
    execl("/proc/self/exe", "calls", "stack", NULL);
    _exit(9);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"registers", registers}, {"stack", stack}, {"restarts", restarts}, {"jumps", jumps}, {"handlers", handlers},
                 {"threads", threads}, {"children", children}, {"cancellation", cancellation}, {"failures", failures},
                 {"confined", confined}, {"segment", segment}, {"storm", storm}, {"rewrites", rewrites}, {"executes", executes}};
    for (int i = 1; i < count; i++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            if (!strcmp(arguments[i], cases[c].name)) cases[c].run();
    return 0;
}
