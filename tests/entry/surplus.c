/* Threads that may not make a thread (RLIMIT_NPROC, so run by root), and end; then, with the limit gone, one is made. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { THREADS = 80 };
static int failed;

static void *none(void *argument) {
    return argument;
}

static void *tries(void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, none, NULL)) failed++;
    else pthread_join(thread, NULL);
    return argument;
}

int main(void) {
    struct rlimit limit = {2, 2000};
    pthread_t thread;
    if (setresgid(65532, 65532, 65532) || setresuid(65532, 65532, 65532) || setrlimit(RLIMIT_NPROC, &limit)) return 1;
    for (int i = 0; i < THREADS; i++) {
        int left = 1000;
        while (pthread_create(&thread, NULL, tries, NULL)) {
            if (!left--) return 2;
            usleep(1000);
        }
        pthread_join(thread, NULL);
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NPROC, &limit)) return 3;
    int made = pthread_create(&thread, NULL, none, NULL) == 0;
    if (made) pthread_join(thread, NULL);
    printf("%s, then one: %d\n", failed == THREADS ? "none" : "some", made);
    return 0;
}
