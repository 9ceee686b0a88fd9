/* Short connections, one after another, on descriptors that are used again and again: each must have its own bytes.
 *   storm PORT THREADS COUNT      against an echo server */
#include "bed.h"
#include <pthread.h>

static int port, count;

static void *thread_main(void *argument) {
    uint64_t seed = 500 + *(int *)argument, hash = HASH_START;
    static _Thread_local unsigned char out[20000], in[20000];
    for (int i = 0; i < count; i++) {
        int fd = connect_to(port);
        for (int exchange = rng_next(&seed) % 4; exchange >= 0; exchange--) {
            size_t size = 1 + rng_next(&seed) % (rng_next(&seed) % 10 ? 300 : sizeof out);
            rng_fill(&seed, out, size);
            send_all(fd, out, size);
            recv_all(fd, in, size);
            expect(!memcmp(out, in, size), "the echo is of this connection");
            hash = hash_more(hash, in, size);
        }
        if (rng_next(&seed) % 3 == 0) {
            shutdown(fd, SHUT_WR);
            expect(recv(fd, in, 1, 0) == 0, "the end comes");
        }
        close(fd);
    }
    *(int *)argument = (int)(hash ^ hash >> 32);
    return NULL;
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: PORT THREADS COUNT");
    pthread_t threads[64];
    int numbers[64], many = atoi(argv[2]);
    port = atoi(argv[1]), count = atoi(argv[3]);
    expect(many > 0 && many <= 64, "1 to 64 threads");
    for (int i = 0; i < many; i++) {
        numbers[i] = i;
        if (pthread_create(&threads[i], NULL, thread_main, &numbers[i])) die("pthread_create");
    }
    for (int i = 0; i < many; i++) {
        pthread_join(threads[i], NULL);
        say("thread %d: %08x", i, numbers[i]);
    }
    return 0;
}
