/* Threads talk on connections while another one does what sends the process back to TCP: their calls go on as if nothing had been.
   filtered server PORT
   filtered client HOW PORT     HOW: filter (one that allows all), probe (a call that the kernel refuses), unshare */
#include "bed.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

enum { THREADS = 4, ROUNDS = 4000 };
static int ready;

static void *echoes(void *argument) {
    int fd = (intptr_t)argument;
    char bytes[100];
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0) send_all(fd, bytes, n);
    close(fd);
    return NULL;
}

static void *talks(void *argument) {
    int fd = connect_to((intptr_t)argument);
    char bytes[100] = "";
    for (int i = 0; i < ROUNDS; i++) {
        if (i == ROUNDS / 2) __atomic_add_fetch(&ready, 1, __ATOMIC_SEQ_CST);
        send_all(fd, bytes, sizeof bytes);
        if (i % 4 == 0) {
            struct pollfd one = {fd, POLLIN, 0};
            expect(poll(&one, 1, 10000) == 1, "poll tells of the answer");
        }
        recv_all(fd, bytes, sizeof bytes);
    }
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    int port = atoi(argv[argc - 1]);
    pthread_t threads[THREADS];
    if (argc == 3) {
        int listener = listen_on(port);
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, echoes, (void *)(intptr_t)accept_one(listener));
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        return 0;
    }
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, talks, (void *)(intptr_t)port);
    while (__atomic_load_n(&ready, __ATOMIC_SEQ_CST) < THREADS) usleep(100);
    if (!strcmp(argv[2], "filter")) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &allow};
        expect(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
    } else if (!strcmp(argv[2], "probe")) {
        expect(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) < 0, "it is refused");
    } else {
        expect(unshare(CLONE_FILES) == 0, "descriptors of its own");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    say("done");
    return 0;
}
