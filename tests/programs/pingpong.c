/* Blocking request and answer of random sizes, through every way to read and write, on CONNS connections with a
 * thread at each end of each.
 *   pingpong server|client PORT CONNS ROUNDS      pingpong both PORT CONNS ROUNDS (both ends in one process)
 *   pingpong forking-server PORT CONNS ROUNDS     beside it a thread forks: children that close all and end */
#include "bed.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MOST 150000
static int port, conns, rounds;
static uint64_t answers[256];

struct end {
    int fd, index;
    uint64_t how; /* picks the call: seeded, so that a failure can be repeated */
};

static size_t random_size(uint64_t *state) {
    uint64_t word = rng_next(state);
    return word % 4 == 0 ? 1 + (word >> 8) % MOST : 1 + (word >> 8) % 900;
}

static ssize_t write_somehow(struct end *end, unsigned char *from, size_t count) {
    size_t first = count / 3;
    struct iovec parts[3] = {{from, first}, {from + first, 0}, {from + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (rng_next(&end->how) % 5) {
    case 0: return write(end->fd, from, count);
    case 1: return send(end->fd, from, count, MSG_NOSIGNAL);
    case 2: return writev(end->fd, parts, 3);
    case 3: return sendmsg(end->fd, &message, MSG_NOSIGNAL);
    default: return sendto(end->fd, from, count, 0, NULL, 0);
    }
}

static ssize_t read_somehow(struct end *end, unsigned char *to, size_t count) {
    size_t first = count / 3;
    struct iovec parts[3] = {{to, first}, {to + first, 0}, {to + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (rng_next(&end->how) % 6) {
    case 0: return read(end->fd, to, count);
    case 1: return recv(end->fd, to, count, 0);
    case 2: return readv(end->fd, parts, 3);
    case 3: return recvmsg(end->fd, &message, 0);
    case 4: return recvfrom(end->fd, to, count, 0, NULL, NULL);
    default: return recv(end->fd, to, count, MSG_WAITALL);
    }
}

static void write_whole(struct end *end, unsigned char *from, size_t count) {
    while (count > 0) {
        ssize_t sent = write_somehow(end, from, count);
        if (sent <= 0) die("write");
        from += sent;
        count -= sent;
    }
}

static void read_whole(struct end *end, unsigned char *to, size_t count) {
    while (count > 0) {
        ssize_t got = read_somehow(end, to, count);
        if (got < 0) die("read");
        expect(got > 0, "no early end of the stream");
        to += got;
        count -= got;
    }
}

static void *serve(void *argument) {
    struct end *end = argument;
    unsigned char *buffer = malloc(MOST);
    uint32_t index, size[2];
    if (getenv("BED_WARM_UNTIL")) warm_up_server(end->fd);
    recv_all(end->fd, &index, sizeof index);
    end->how = 7000 + index;
    uint64_t bytes = index;
    for (int round = 0; round < rounds; round++) {
        read_whole(end, (unsigned char *)size, sizeof size);
        expect(size[0] <= MOST && size[1] <= MOST, "the header is whole");
        read_whole(end, buffer, size[0]);
        uint64_t hash = hash_more(HASH_START, buffer, size[0]);
        write_whole(end, (unsigned char *)&hash, sizeof hash);
        rng_fill(&bytes, buffer, size[1]);
        write_whole(end, buffer, size[1]);
    }
    expect(recv(end->fd, buffer, 1, 0) == 0, "the client's close is seen");
    close(end->fd);
    free(buffer);
    return NULL;
}

static void *ask(void *argument) {
    struct end *end = argument;
    unsigned char *buffer = malloc(MOST);
    uint64_t sizes = 100 + end->index, bytes = 200 + end->index, hash = HASH_START, theirs, wanted = end->index;
    uint32_t index = end->index, size[2];
    end->fd = connect_to(port);
    if (getenv("BED_WARM_UNTIL")) warm_up_client(end->fd);
    send_all(end->fd, &index, sizeof index);
    end->how = 9000 + index;
    for (int round = 0; round < rounds; round++) {
        size[0] = random_size(&sizes);
        size[1] = random_size(&sizes);
        rng_fill(&bytes, buffer, size[0]);
        uint64_t mine = hash_more(HASH_START, buffer, size[0]);
        write_whole(end, (unsigned char *)size, sizeof size);
        write_whole(end, buffer, size[0]);
        read_whole(end, (unsigned char *)&theirs, sizeof theirs);
        expect(theirs == mine, "the server received what was sent");
        read_whole(end, buffer, size[1]);
        hash = hash_more(hash, buffer, size[1]);
        unsigned char *check = malloc(size[1]);
        rng_fill(&wanted, check, size[1]);
        expect(!memcmp(check, buffer, size[1]), "the client received what was sent");
        free(check);
    }
    close(end->fd);
    answers[index] = hash;
    free(buffer);
    return NULL;
}

static void *serve_all(void *argument) {
    int listener = *(int *)argument;
    pthread_t threads[256];
    static struct end ends[256];
    for (int i = 0; i < conns; i++) {
        ends[i].fd = accept_one(listener);
        if (pthread_create(&threads[i], NULL, serve, &ends[i])) die("pthread_create");
    }
    for (int i = 0; i < conns; i++) pthread_join(threads[i], NULL);
    close(listener);
    return NULL;
}

static atomic_int served;

static void *fork_until_served(void *unused) {
    (void)unused;
    while (!served) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child == 0) {
            for (int fd = 3; fd < 64; fd++) close(fd);
            _exit(0);
        }
        int status;
        expect(waitpid(child, &status, 0) == child && status == 0, "the child ends");
        usleep(1000); /* a connection gets no lane while a child has it too */
    }
    return NULL;
}

static void ask_all(void) {
    pthread_t threads[256];
    static struct end ends[256];
    for (int i = 0; i < conns; i++) {
        ends[i].index = i;
        if (pthread_create(&threads[i], NULL, ask, &ends[i])) die("pthread_create");
    }
    for (int i = 0; i < conns; i++) {
        pthread_join(threads[i], NULL);
        say("connection %d: %016lx", i, answers[i]);
    }
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: server|forking-server|client|both PORT CONNS ROUNDS");
    port = atoi(argv[2]), conns = atoi(argv[3]), rounds = atoi(argv[4]);
    expect(conns > 0 && conns <= 256, "1 to 256 connections");
    int listener = strcmp(argv[1], "client") ? listen_on(port) : -1;
    pthread_t server;
    if (!strcmp(argv[1], "server")) {
        serve_all(&listener);
    } else if (!strcmp(argv[1], "forking-server")) {
        pthread_t forker;
        if (pthread_create(&forker, NULL, fork_until_served, NULL)) die("pthread_create");
        serve_all(&listener);
        served = 1;
        pthread_join(forker, NULL);
    } else if (!strcmp(argv[1], "client")) {
        ask_all();
    } else {
        if (pthread_create(&server, NULL, serve_all, &listener)) die("pthread_create");
        ask_all();
        pthread_join(server, NULL);
    }
    say("done");
    return 0;
}
