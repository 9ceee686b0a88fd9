/* A descriptor that goes away under a thread that waits in recv on it.
 *   closed server close|dup2 PORT
 *   closed client PORT */
#include "bed.h"
#include <pthread.h>
#include <sys/syscall.h>

static int fd;
static _Atomic pid_t reader;

static void *reads(void *unused) {
    char byte;
    reader = syscall(SYS_gettid);
    say("reader: %s", outcome(recv(fd, &byte, 1, 0)));
    return unused;
}

/* Whether the reader has slept for a while: it is not on its way into the call any more. */
static void wait_until_it_sleeps(void) {
    for (int seen = 0; seen < 50; usleep(2000)) {
        char path[64], text[256] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", reader);
        FILE *file = reader ? fopen(path, "r") : NULL;
        if (!file) continue;
        seen = fgets(text, sizeof text, file) && strstr(text, ") S ") ? seen + 1 : 0;
        fclose(file);
    }
}

int main(int argc, char **argv) {
    expect(argc == 4 || argc == 3, "usage: server close|dup2 PORT, or client PORT");
    sync_open(argc == 4);
    if (argc == 3) {
        fd = connect_to(atoi(argv[2]));
        warm_up_client(fd);
        await();
        send(fd, "!", 1, MSG_NOSIGNAL);
        await();
        return 0;
    }
    pthread_t thread;
    int other = open("/dev/null", O_RDWR);
    fd = accept_one(listen_on(atoi(argv[3])));
    warm_up_server(fd);
    pthread_create(&thread, NULL, reads, NULL);
    wait_until_it_sleeps();
    if (!strcmp(argv[2], "close")) close(fd);
    else dup2(other, fd);
    tell();
    pthread_join(thread, NULL);
    tell();
    return 0;
}
