/* Writes of which no hook of a library can know: the system call instruction itself.
 *   bypass PORT WHEN      connects to an echo server; WHEN: first (before anything else), later (after 200 exchanges)
 * Answers in the end must be those of TCP: the bytes in their order. */
#include "bed.h"

int main(int argc, char **argv) {
    expect(argc == 3, "usage: PORT first|later");
    int fd = connect_to(atoi(argv[1])), is_later = !strcmp(argv[2], "later");
    unsigned char message[512], back[512];
    uint64_t seed = 6, hash = HASH_START;
    for (int round = 0; round < 3000; round++) {
        rng_fill(&seed, message, sizeof message);
        if (round == (is_later ? 200 : 0)) {
            expect(unseen_call(SYS_write, fd, (long)message, sizeof message, 0) == sizeof message, "the raw write is whole");
        } else {
            send_all(fd, message, sizeof message);
        }
        recv_all(fd, back, sizeof back);
        expect(!memcmp(message, back, sizeof back), "the echo is what was sent");
        hash = hash_more(hash, back, sizeof back);
    }
    say("echoed %016lx", hash);
    return 0;
}
