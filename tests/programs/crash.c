/* A one-way stream whose ends the test kills or stops. The sender keeps, in a file that outlives it, how many bytes
 * its sends returned for: the receiver must get at least those, all of them right, and then what TCP would say.
 *   crash send listen|connect PORT TALLY LIMIT          sends LIMIT bytes (0: until it fails), closes when told
 *   crash receive listen|connect PORT TALLY PAUSE_AT    after PAUSE_AT bytes (0: at once) waits to be told, then drains */
#include "bed.h"
#include <sys/mman.h>

#define CHUNK 20000
static unsigned char data[CHUNK + 8], wanted[CHUNK + 8];
static volatile uint64_t *tally; /* [0] sent, [1] received */

static void send_stream(int fd, uint64_t limit) {
    uint64_t seed = 42;
    while (!limit || tally[0] < limit) {
        rng_fill(&seed, data, CHUNK);
        for (size_t at = 0; at < CHUNK;) {
            ssize_t sent = send(fd, data + at, CHUNK - at, MSG_NOSIGNAL);
            if (sent < 0) {
                say("send: %s", outcome(sent));
                say("again: %s", outcome(send(fd, data, 1, MSG_NOSIGNAL)));
                return;
            }
            at += sent;
            tally[0] += sent;
        }
    }
    say("all sent");
    await();
    close(fd);
}

static void receive_stream(int fd, uint64_t pause_at) {
    uint64_t seed = 42, total = 0;
    int paused = 0;
    size_t left = 0;
    ssize_t got;
    for (;;) {
        if (!paused && total >= pause_at) {
            await();
            paused = 1;
        }
        if (left == 0) {
            rng_fill(&seed, wanted, CHUNK);
            left = CHUNK;
        }
        got = recv(fd, data, left, 0);
        if (got <= 0) break;
        expect(!memcmp(data, wanted + (CHUNK - left), got), "each byte is the one that was sent there");
        left -= got;
        total += got;
        tally[1] = total;
    }
    say("end: %s", outcome(got));
    say("all that sends returned for: %d", total >= tally[0]);
    say("nothing more than was handed to send: %d", total <= tally[0] + CHUNK);
}

int main(int argc, char **argv) {
    expect(argc == 6, "usage: send|receive listen|connect PORT TALLY NUMBER");
    int file = open(argv[4], O_RDWR | O_CLOEXEC), fd, is_sender = !strcmp(argv[1], "send");
    tally = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || tally == MAP_FAILED) die("tally");
    sync_open(!is_sender);
    if (!strcmp(argv[2], "listen")) {
        int listener = listen_on(atoi(argv[3]));
        fd = accept_one(listener);
        close(listener);
        warm_up_server(fd);
    } else {
        fd = connect_to(atoi(argv[3]));
        warm_up_client(fd);
    }
    if (is_sender) send_stream(fd, strtoull(argv[5], NULL, 10));
    else receive_stream(fd, strtoull(argv[5], NULL, 10));
    return 0;
}
