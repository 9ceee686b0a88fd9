/* A connection whose calls are all made on a stack as small as programs have: where its lane is asked for, agreed and opened, too.
 *   stacks server|client thread|handler PORT      a thread of PTHREAD_STACK_MIN; a handler on an alternate stack of SIGSTKSZ, as it was */
#include "bed.h"
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>

enum { ROUNDS = 300, SMALL = 8192, GUARD = 4096 };

static int fd, is_server;

/* Answers, or has answered, one byte that is waited for: in turn by a read, poll and epoll. */
static void turns(void) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    char byte = 0;
    if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &event)) die("epoll");
    for (int round = 0; round < ROUNDS; round++) {
        struct pollfd one = {fd, POLLIN, 0};
        if (!is_server) send_all(fd, &byte, 1);
        if (round % 3 == 1) expect(poll(&one, 1, 10000) == 1, "poll tells of it");
        if (round % 3 == 2) expect(epoll_wait(set, &event, 1, 10000) == 1, "epoll tells of it");
        recv_all(fd, &byte, 1);
        if (is_server) send_all(fd, &byte, 1);
    }
    close(set);
}

static void dialogue(void) {
    if (is_server) warm_up_server(fd);
    else warm_up_client(fd);
    turns();
}

static void *in_thread(void *argument) {
    dialogue();
    return argument;
}

static void in_handler(int signal) {
    (void)signal;
    dialogue();
}

static void *guarded(size_t size) {
    char *at = mmap(NULL, GUARD + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE)) die("a stack");
    return at + GUARD;
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client thread|handler PORT");
    is_server = !strcmp(argv[1], "server");
    fd = is_server ? accept_one(listen_on(atoi(argv[3]))) : connect_to(atoi(argv[3]));
    if (!strcmp(argv[2], "thread")) {
        pthread_attr_t small;
        pthread_t thread;
        pthread_attr_init(&small);
        expect(pthread_attr_setstacksize(&small, sysconf(_SC_THREAD_STACK_MIN)) == 0, "it is enough");
        expect(pthread_create(&thread, &small, in_thread, NULL) == 0, "a thread");
        pthread_join(thread, NULL);
    } else {
        /* What the CPU's registers take of it differs. */
        size_t frame = getauxval(AT_MINSIGSTKSZ), size = SMALL + (frame > 2048 ? frame - 2048 : 0);
        stack_t small = {.ss_sp = guarded((size + GUARD - 1) & -GUARD), .ss_size = (size + GUARD - 1) & -GUARD};
        struct sigaction action = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
        if (sigaltstack(&small, NULL) || sigaction(SIGUSR1, &action, NULL)) die("sigaltstack");
        raise(SIGUSR1);
    }
    say("done");
    return 0;
}
