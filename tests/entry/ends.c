/* Threads that can take a signal of the process end by exit(2), without blocking signals, just when one comes. It is handled there, or by
   the next one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIGNAL = 40, THREADS = 20000 };
static volatile int handled, sent, about_to_end, is_over;

static void count(int signal) {
    (void)signal;
    __sync_fetch_and_add(&handled, 1);
}

static void *ends(void *unused) {
    (void)unused;
    sigset_t one;
    sigemptyset(&one), sigaddset(&one, SIGNAL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    for (volatile int i = 0; i < 300; i++) {}
    about_to_end = 1;
    syscall(SYS_exit, 0);
    return NULL;
}

static void *sends(void *unused) {
    (void)unused;
    while (!is_over) {
        if (!about_to_end || handled < sent) continue;
        about_to_end = 0;
        for (volatile int i = rand() % 3000; i > 0; i--) {}
        if (!sigqueue(getpid(), SIGNAL, (union sigval){0})) sent++;
    }
    return NULL;
}

/* A connection that has been used: from then on there is something to be done at a thread's end. */
static void talk(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    char bytes[100] = "";
    if (bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size)) exit(1);
    if (connect(fd, (void *)&at, size)) exit(1);
    int peer = accept(listener, NULL, NULL);
    for (int i = 0; i < 3000; i++) {
        if (write(i % 2 ? fd : peer, bytes, sizeof bytes) != sizeof bytes) exit(1);
        if (read(i % 2 ? peer : fd, bytes, sizeof bytes) != sizeof bytes) exit(1);
    }
}

int main(void) {
    sigset_t one;
    pthread_t sender, thread;
    talk();
    struct sigaction action = {.sa_handler = count, .sa_flags = SA_RESTART};
    sigaction(SIGNAL, &action, NULL);
    sigemptyset(&one), sigaddset(&one, SIGNAL);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    pthread_create(&sender, NULL, sends, NULL);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&thread, NULL, ends, NULL)) return 1;
        pthread_join(thread, NULL);
    }
    is_over = 1;
    pthread_join(sender, NULL);
    if (pthread_create(&thread, NULL, ends, NULL)) return 1;
    pthread_join(thread, NULL);
    printf("%s\n", sent > 0 && handled == sent ? "all handled" : "lost");
    return 0;
}
