/* Connections that several threads open and close at once, before, while and after a lane is made for them.
 *   closing server PORT
 *   closing client PORT THREADS COUNT      waits for the end of its input then */
#include "bed.h"
#include <pthread.h>

static int port, count, listener;

static void *serve(void *argument) {
    uint64_t seed = 900 + (intptr_t)argument;
    for (char byte;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        if (rng_next(&seed) % 2) (void)!read(fd, &byte, 1);
        close(fd);
    }
    return NULL;
}

static void *open_and_close(void *argument) {
    uint64_t seed = 700 + (intptr_t)argument;
    for (int i = 0; i < count; i++) {
        int fd = connect_to(port), pause = rng_next(&seed) % 300;
        if (pause > 150) usleep(pause - 150); /* as long as a handshake takes, about */
        if (rng_next(&seed) % 2) (void)!send(fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int client = argc == 5 && !strcmp(argv[1], "client");
    expect(client || (argc == 3 && !strcmp(argv[1], "server")), "usage: client PORT THREADS COUNT, or server PORT");
    port = atoi(argv[2]);
    long threads = client ? atoi(argv[3]) : 6;
    pthread_t ids[16];
    expect(threads > 0 && threads <= 16, "1 to 16 threads");
    if (client) count = atoi(argv[4]);
    else listener = listen_on(port);
    for (intptr_t i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, client ? open_and_close : serve, (void *)i)) die("pthread_create");
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    say("waits");
    /* What is said to a process that sleeps it hears with its next call. */
    struct pollfd input = {0, POLLIN, 0};
    while (!poll(&input, 1, 100)) {
    }
    return 0;
}
