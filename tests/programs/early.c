/* A life before main() and after it: connections that constructors open and destructors still use.
 *   early server|client PORT
 * Each of three stages is a dialogue: in a constructor, in main(), in a destructor that runs after exit(). */
#include "bed.h"

enum { ROUNDS = 300, SIZE = 700 };

static int fd = -1, is_server;

static void dialogue(const char *stage) {
    static unsigned char message[SIZE];
    uint64_t seed = stage[0], hash = HASH_START;
    for (int round = 0; round < ROUNDS; round++) {
        if (is_server) recv_all(fd, message, SIZE);
        else rng_fill(&seed, message, SIZE);
        send_all(fd, message, SIZE);
        if (!is_server) {
            unsigned char back[SIZE];
            recv_all(fd, back, SIZE);
            expect(!memcmp(message, back, SIZE), "the echo is what was sent");
        }
        hash = hash_more(hash, message, SIZE);
    }
    /* stdio may be gone already. */
    dprintf(1, "%s: %016lx\n", stage, (unsigned long)hash);
}

/* glibc hands constructors what main() gets. The lowest priority a program may ask for: before all others of its own. */
__attribute__((constructor(101))) static void before(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    is_server = !strcmp(argv[1], "server");
    if (is_server) {
        int listener = listen_on(atoi(argv[2]));
        fd = accept_one(listener);
        close(listener);
        warm_up_server(fd);
    } else {
        fd = connect_to(atoi(argv[2]));
        warm_up_client(fd);
    }
    dialogue("before");
}

__attribute__((destructor(101))) static void after(void) {
    dialogue("after");
    char end;
    if (!is_server) shutdown(fd, SHUT_WR);
    expect(recv(fd, &end, 1, 0) == 0, "the end comes after all bytes");
    if (is_server) shutdown(fd, SHUT_WR);
}

int main(void) {
    dialogue("main");
    return 0;
}
