/* Signals that come at any instruction around a system call. A libc's cancellation looks where its thread was interrupted, and misses what it
 * does not know there: then the thread waits for ever. And no handler is shown an address, or registers, that are not the program's. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern char __executable_start[], etext[];

static atomic_int ready, stop;
static atomic_ulong handled;
static int is_alternate;
static _Atomic unsigned long strange[2];
static int pipes[2];

static void expect(int is_so, const char *what) {
    if (is_so) return;
    printf("%s\n", what);
    fflush(stdout);
    _exit(1);
}

static void spin(int turns) {
    for (volatile int i = 0; i < turns; i++) continue;
}

static void *reader(void *kind) {
    char byte;
    struct iovec vector = {&byte, 1};
    ready = 1;
    for (;;) {
        if ((kind ? readv(pipes[0], &vector, 1) : read(pipes[0], &byte, 1)) == 0) return NULL;
    }
}

/* Most delays end within the first call: each thread is cancelled as it comes to it. */
static void cancels(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        ready = 0;
        expect(pthread_create(&thread, NULL, reader, i % 2 ? pipes : NULL) == 0, "pthread_create");
        while (!ready) continue;
        spin(rand() % (i % 4 ? 150 : 1500));
        pthread_cancel(thread);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        void *result;
        expect(pthread_timedjoin_np(thread, &result, &until) == 0, "a cancellation was lost");
        expect(result == PTHREAD_CANCELED, "it ended otherwise");
    }
    puts("all cancelled");
}

/* A call with a value of its own in each register that calls keep, twice: at its own place when it is patched, and moved. */
#define CALL(name, before, behind)                                                                                             \
    extern char name##_call[];                                                                                                 \
    static __attribute__((noinline, noclone)) long name(long number, long descriptor) {                                        \
        register long r8 __asm__("r8") = 8, r9 __asm__("r9") = 9, r10 __asm__("r10") = 10, r12 __asm__("r12") = 12;            \
        register long r15 __asm__("r15") = 15;                                                                                 \
        long result = number, rdi = descriptor, rsi = 0, rdx = 1;                                                              \
        __asm__ volatile(before "\n" #name "_call: syscall\n" behind                                                           \
                         : "+a"(result), "+D"(rdi), "+S"(rsi), "+d"(rdx), "+r"(r8), "+r"(r9), "+r"(r10), "+r"(r12), "+r"(r15)  \
                         :                                                                                                     \
                         : "rcx", "r11", "r14", "memory");                                                                     \
        expect(rdi == descriptor && rsi == 0 && rdx == 1 && r8 == 8 && r9 == 9, "an argument is another");                     \
        expect(r10 == 10 && r12 == 12 && r15 == 15, "a register is another");                                                  \
        return result;                                                                                                         \
    }
CALL(kept, "lea 0x1234(%%rbx), %%r14", "mov %%rbx, %%r14")
CALL(moved, "nopl 0x1234(%%rbx)", "nopl 0x5678(%%rbx)")

static int is_within(unsigned long address, void *begin, unsigned long size) { return address - (unsigned long)begin < size; }

static void *stack;
static size_t stack_size;

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    const greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    unsigned long address = registers[REG_RIP];
    if (!is_within(address, __executable_start, etext - __executable_start)) strange[0] = address;
    if (!is_within(registers[REG_RSP], stack, stack_size)) strange[1] = registers[REG_RSP];
    unsigned long own = (unsigned long)__builtin_frame_address(0);
    if (is_within(own, stack, stack_size) == is_alternate) strange[1] = own;
    if (address == (unsigned long)kept_call || address == (unsigned long)moved_call) {
        int is_so = registers[REG_RDX] == 1 && registers[REG_RSI] == 0 && registers[REG_R8] == 8 && registers[REG_R9] == 9 &&
                    registers[REG_R10] == 10 && registers[REG_R12] == 12 && registers[REG_R15] == 15 &&
                    (registers[REG_RAX] == SYS_getppid || registers[REG_RAX] == SYS_read);
        expect(is_so, "a handler is shown another register at a call");
    }
    /* An entry within what was interrupted. */
    syscall(SYS_getppid);
    char byte;
    expect(syscall(SYS_read, -1, &byte, 1) == -1, "read of nothing");
    handled++;
}

static void *looper(void *alternate) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &stack_size);
    if (alternate) {
        stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        sigaltstack(&other, NULL);
    }
    long parent = getppid();
    ready = 1;
    while (!stop) {
        expect(kept(SYS_getppid, 5) == parent && moved(SYS_getppid, 5) == parent, "another parent");
        expect(kept(SYS_read, -1) == -9 && moved(SYS_read, -1) == -9, "another result");
    }
    return NULL;
}

static void addresses(int count, int alternate) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART | (alternate ? SA_ONSTACK : 0)};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread;
    ready = stop = handled = 0;
    is_alternate = alternate;
    pthread_create(&thread, NULL, looper, alternate ? &stop : NULL);
    while (!ready) continue;
    for (int i = 0; i < count; i++) {
        unsigned long before = handled;
        pthread_kill(thread, SIGUSR1);
        struct timespec began, now;
        clock_gettime(CLOCK_MONOTONIC, &began);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while (handled == before && now.tv_sec < began.tv_sec + 20);
        expect(handled != before, "a signal was lost");
        spin(rand() % 500);
    }
    stop = 1;
    pthread_join(thread, NULL);
    expect(!strange[0], "a handler is shown an address that is not the program's");
    expect(!strange[1], "a handler is shown a stack that is not the program's, or runs on another");
    puts("all shown");
}

int main(int count, char **arguments) {
    srand(count > 2 ? atoi(arguments[2]) : 1);
    expect(pipe(pipes) == 0, "pipe");
    int turns = count > 1 ? atoi(arguments[1]) : 20000;
    addresses(turns * 3, 0);
    addresses(turns * 3, 1);
    cancels(turns);
    return 0;
}
