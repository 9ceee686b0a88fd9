/* A sender has ended its stream when its reader, which has read 10 bytes of it, reads on by stdio or executes another program.
 *   rests server|client PORT server|client: who sends; COUNT; r|r+|exec */
#include "bed.h"
#include <sys/wait.h>

static void send_and_end(int fd, size_t count) {
    unsigned char *data = calloc(1, count);
    uint64_t seed = 3;
    char answer[2];
    rng_fill(&seed, data, count);
    send_all(fd, data, count);
    shutdown(fd, SHUT_WR);
    say("answered by %s", outcome(recv(fd, answer, sizeof answer, MSG_WAITALL)));
}

static void read_rest(int fd, size_t count, const char *how) {
    unsigned char *data = calloc(1, count + 1), *sent = calloc(1, count);
    uint64_t seed = 3;
    rng_fill(&seed, sent, count);
    usleep(100000); /* the stream has ended */
    recv_all(fd, data, 10);
    if (!strcmp(how, "exec")) {
        fflush(stdout);
        if (!fork()) {
            dup2(fd, 0);
            close(fd);
            execlp("wc", "wc", "-c", NULL);
        }
        close(fd);
        int status;
        wait(&status);
        say("it %s", status ? "failed" : "ended");
        return;
    }
    FILE *stream = fdopen(fd, how);
    expect(fileno(stream) == fd, "its number");
    expect(fgetc(stream) == sent[10] && ungetc(sent[10], stream) == sent[10], "a byte");
    size_t got = 10 + fread(data + 10, 1, count + 1 - 10, stream);
    expect(!memcmp(data, sent, count), "the bytes that were sent");
    say("%zu bytes, end %d, error %d", got, !!feof(stream), !!ferror(stream));
    if (how[1]) fputs("ok", stream);
    say("closed: %d", fclose(stream));
    expect(fcntl(fd, F_GETFD) < 0, "closed");
}

int main(int argc, char **argv) {
    expect(argc == 6, "usage: server|client PORT SENDER COUNT HOW");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[2]);
    int fd = is_server ? accept_one(listen_on(port)) : connect_to(port);
    fcntl(fd, F_SETFD, 0);
    (is_server ? warm_up_server : warm_up_client)(fd);
    if (!strcmp(argv[1], argv[3])) send_and_end(fd, atoi(argv[4]));
    else read_rest(fd, atoi(argv[4]), argv[5]);
    return 0;
}
