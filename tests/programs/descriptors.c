/* A program that uses all the descriptors that it may have: connections until there are no more, and files then.
 *   descriptors server|client PORT
 * The end that is under the limit finds it: the server, with a thread for each connection, in accept(), the client in socket(). */
#include "bed.h"
#include <pthread.h>

#define MOST 600
#define ROUNDS 16

static int files_until_none_is_left(void) {
    int count = 0;
    while (open("/dev/null", O_RDONLY) >= 0) count++;
    expect(errno == EMFILE, "no descriptor is left");
    return count;
}

static void *echo(void *argument) {
    int fd = (int)(intptr_t)argument;
    char message[64];
    while (recv_upto(fd, message, sizeof message) == sizeof message) send_all(fd, message, sizeof message);
    return NULL; /* its number stays in use, so that the count is exact */
}

static void serve(int port) {
    static pthread_t threads[MOST];
    int listener = listen_on(port), count = 0, fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        expect(count < MOST, "a limit");
        char first = 0;
        expect(recv(fd, &first, 1, MSG_PEEK) == 1, "the client begins");
        int error = pthread_create(&threads[count++], NULL, echo, (void *)(intptr_t)fd);
        expect(error == 0, "a thread can be made");
        if (first == 'l') break; /* the client has no more */
    }
    say("accepted %d, then %s", count, fd < 0 ? outcome(fd) : "no more");
    int is_limited = fd < 0;
    close(listener);
    if (is_limited) say("files: %d", files_until_none_is_left());
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

/* Whether it was accepted: one that was not is reset. */
static int exchange(int fd, char first) {
    char message[64] = {first};
    for (int round = 0; round < ROUNDS; round++) {
        if (send(fd, message, sizeof message, MSG_NOSIGNAL) != sizeof message) return 0;
        ssize_t got = recv(fd, message, sizeof message, MSG_WAITALL);
        if (got != sizeof message) return 0;
    }
    return 1;
}

static void use(int port) {
    struct sockaddr_in address = bed_address(port);
    int count = 0, fd, before = -1;
    while ((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0) {
        if (connect(fd, (struct sockaddr *)&address, sizeof address) || !exchange(fd, 'm')) break;
        before = fd;
        count++;
    }
    say("connected %d, then %s", count, fd < 0 ? outcome(fd) : "no more");
    if (fd < 0) {
        say("files: %d", files_until_none_is_left());
        close(before);
        fd = connect_to(port);
        say("one for another: %d", exchange(fd, 'l'));
        say("files: %d", files_until_none_is_left());
    }
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: descriptors server|client PORT");
    if (!strcmp(argv[1], "server")) serve(atoi(argv[2]));
    else use(atoi(argv[2]));
    return 0;
}
