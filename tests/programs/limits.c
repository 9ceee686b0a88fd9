/* A program under a limit: what it does under it on TCP, it does on lanes.
 *   limits server|client LOAD FLAG PORT
 * LOAD: bulk (few connections), small (many), idle (a crowd that says little), full (what is sent is read late), half (of as many)
 * FLAG, set by the program itself before and after it has connected: none, lock-future, lock-all, lock-fault, undumpable, no-thp,
 * no-exec-gain, no-new-privs, slack, stop (it stops itself once, when all is there) */
#include "bed.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define MOST (1 << 20)

static const struct load {
    const char *name;
    int connections, rounds;
    uint32_t size;
} loads[] = {{"bulk", 4, 6, 3 << 20}, {"small", 100, 12, 300}, {"idle", 300, 2, 40}, {"full", 60, 12, MOST}, {"half", 30, 12, MOST}};

static const struct load *find_load(const char *name) {
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        if (!strcmp(loads[i].name, name)) return &loads[i];
    expect(0, "the load is known");
    return NULL;
}

static void set_flag(const char *flag, int connected) {
    int result = 0;
    if (!strcmp(flag, "lock-future") && !connected) result = mlockall(MCL_CURRENT | MCL_FUTURE);
    if (!strcmp(flag, "lock-all") && connected) result = mlockall(MCL_CURRENT);
    if (!strcmp(flag, "lock-fault")) result = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
    if (!strcmp(flag, "undumpable")) result = prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    if (!strcmp(flag, "no-thp")) result = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    /* PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN, Linux 6.3. */
    if (!strcmp(flag, "no-exec-gain") && !connected) result = prctl(65, 1, 0, 0, 0);
    if (!strcmp(flag, "no-new-privs")) result = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(flag, "slack")) result = prctl(PR_SET_TIMERSLACK, 100000000, 0, 0, 0);
    if (!strcmp(flag, "stop") && connected) {
        if (write(1, "stopped\n", 8) != 8) die("write");
        result = raise(SIGSTOP);
    }
    expect(result == 0, "the flag is set");
}

/* A line of /proc/self/status, in KiB. */
static long status_of(const char *name) {
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    expect(file != NULL, "there is a status");
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':') found = atol(line + strlen(name) + 1);
    fclose(file);
    return found;
}

static void move_all(int fd, unsigned char *at, size_t count, int sends) {
    for (size_t done = 0; done < count;) {
        ssize_t n = sends ? send(fd, at + done, count - done, MSG_NOSIGNAL) : recv(fd, at + done, count - done, 0);
        if (n < 0 && errno == EINTR) continue;
        expect(n > 0, sends ? "it can be sent" : "it comes");
        done += n;
    }
}

/* One message there and back, of bytes that neither end has sent before. */
static void exchange(int fd, unsigned char *buffer, uint32_t size, int is_server, uint32_t seed) {
    for (int turn = 0; turn < 2; turn++) {
        int sends = turn == is_server;
        if (sends)
            for (uint32_t i = 0; i < size; i++) buffer[i] = (i + seed + turn) * 2654435761u >> 24;
        move_all(fd, buffer, size, sends);
        if (sends) continue;
        for (uint32_t i = 0; i < size; i++)
            if (buffer[i] != (unsigned char)((i + seed + turn) * 2654435761u >> 24)) expect(0, "the bytes are what was sent");
    }
}

static const struct load *load;
static int is_server, fds[512];

static unsigned char byte_at(int connection, uint64_t position) { return (position * 31 + connection) >> 3; }

/* The client sends by each connection what is taken without waiting, at most a MiB, and says how much it was; only then it is read. */
static void fill_and_drain(void) {
    static unsigned char buffer[65536];
    static uint64_t position[512];
    int last = load->connections - 1;
    for (int round = 0; round < load->rounds; round++) {
        uint32_t counts[512] = {0};
        for (int i = 0; i < last && !is_server; i++) {
            while (counts[i] < MOST) {
                for (size_t k = 0; k < sizeof buffer; k++) buffer[k] = byte_at(i, position[i] + k);
                ssize_t n = send(fds[i], buffer, sizeof buffer, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n < 0 && errno == EAGAIN) break;
                expect(n > 0, "it can be sent");
                counts[i] += n;
                position[i] += n;
            }
        }
        move_all(fds[last], (unsigned char *)counts, sizeof counts, !is_server);
        for (int i = 0; i < last && is_server; i++) {
            for (uint32_t done = 0, n; done < counts[i]; done += n) {
                n = counts[i] - done < sizeof buffer ? counts[i] - done : sizeof buffer;
                move_all(fds[i], buffer, n, 0);
                for (uint32_t k = 0; k < n; k++) expect(buffer[k] == byte_at(i, position[i] + k), "the bytes are what was sent");
                position[i] += n;
            }
        }
        move_all(fds[last], (unsigned char *)counts, 1, is_server);
    }
}

static void *talk(void *argument) {
    int at = (int)(intptr_t)argument;
    unsigned char *buffer = malloc(load->size);
    expect(buffer != NULL, "there is memory for a buffer");
    for (int round = 0; round < load->rounds; round++) exchange(fds[at], buffer, load->size, is_server, round * 1000 + at);
    free(buffer);
    return NULL;
}

static void *nothing(void *argument) { return argument; }

static void run_threads(int count, void *(*body)(void *)) {
    pthread_t threads[32];
    for (int i = 0; i < count; i++) {
        int error = pthread_create(&threads[i], NULL, body, (void *)(intptr_t)i);
        if (error) {
            errno = error;
            expect(0, "a thread can be made");
        }
    }
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    expect(argc == 5, "usage: limits server|client LOAD FLAG PORT");
    is_server = !strcmp(argv[1], "server");
    load = find_load(argv[2]);
    set_flag(argv[3], 0);
    int port = atoi(argv[4]), listener = is_server ? listen_on(port) : -1;
    for (int i = 0; i < load->connections; i++) fds[i] = is_server ? accept_one(listener) : connect_to(port);
    if (load->size == MOST) {
        fill_and_drain();
    } else if (load->size > 65536) {
        run_threads(load->connections, talk);
    } else {
        unsigned char buffer[4096];
        for (int round = 0; round < load->rounds; round++)
            for (int i = 0; i < load->connections; i++) exchange(fds[i], buffer, load->size, is_server, round * 1000 + i);
    }
    set_flag(argv[3], 1);
    /* What else it does: threads, memory. */
    run_threads(8, nothing);
    void *memory = malloc(16 << 20);
    printf("threads, %s", memory ? "memory" : "no memory");
    if (memory) memset(memory, 1, 16 << 20);
    free(memory);
    for (int i = 0; i < load->connections; i++) exchange(fds[i], (unsigned char[64]){0}, 64, is_server, i);
    /* More than its own buffers, stacks and heaps and what rings of few connections use; less than those of a crowd would. */
    long locked = status_of("VmLck"), resident = status_of("VmRSS");
    printf(", %s resident\n", resident < 200 << 10 ? "little" : "much");
    fflush(stdout);
    fprintf(stderr, "%ld KiB locked, %ld KiB resident\n", locked, resident);
    /* The end of one side is when the other has seen all. */
    for (int i = 0; i < load->connections; i++) {
        shutdown(fds[i], SHUT_WR);
        unsigned char byte;
        expect(recv(fds[i], &byte, 1, 0) == 0, "the other end is done, too");
    }
    return 0;
}
