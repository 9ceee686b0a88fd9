/* A server that warms up by calls, and goes on by io_uring: what it reads and writes there must be what the client sent.
 *   rings client PORT
 *   rings server PORT HOW     HOW the ring is made: called (libc's syscall), linked (liburing), early (by the program's own
 *                             system call, before the connection); or refused, by the kernel: the server goes on by calls; or files: one of
 *                             liburing's reads a file now and then, and the server goes on by calls
 * Also made as a plugin (-shared -Dmain=run) and a program that loads it for itself alone, liburing and all (-DHOST):
 *   host PLUGIN ARGUMENT...
 * links: -luring */
#ifdef HOST
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin) return ((int (*)(int, char **))dlsym(plugin, "run"))(argc - 1, argv + 1);
    fprintf(stderr, "host: %s\n", dlerror());
    return 70;
}
#else
#include "bed.h"
#include <dlfcn.h>
#include <liburing.h>

static unsigned char data[100000];

static struct io_uring made(const char *how) {
    struct io_uring_params params = {0};
    struct io_uring ring = {0};
    int result;
    if (!strcmp(how, "linked")) {
        result = io_uring_queue_init(8, &ring, 0);
    } else {
        long fd = !strcmp(how, "called") ? syscall(SYS_io_uring_setup, 8, &params) : unseen_call(SYS_io_uring_setup, 8, (long)&params, 0, 0);
        expect(fd >= 0, "the kernel makes a ring");
        /* liburing's own, past any hook. */
        int (*map)(int, struct io_uring_params *, struct io_uring *) = io_uring_queue_mmap;
        if (!strcmp(how, "early")) *(void **)&map = dlsym(dlopen("liburing.so.2", RTLD_LAZY), "io_uring_queue_mmap");
        result = map(fd, &params, &ring);
        for (unsigned slot = 0; slot < params.sq_entries; slot++) ring.sq.array[slot] = slot;
    }
    expect(result == 0, "the ring is made");
    return ring;
}

/* No ring comes of it. */
static void refused(void) {
    struct io_uring ring;
    expect(syscall(SYS_io_uring_setup, 8, NULL) < 0, "a ring without parameters is refused");
    expect(io_uring_queue_init(0, &ring, 0) < 0, "a ring without entries is refused");
}

static void serve_by_calls(int port) {
    refused();
    int fd = accept_one(listen_on(port));
    warm_up_server(fd);
    refused();
    uint64_t hash = HASH_START, total = 0;
    for (ssize_t count; (count = recv(fd, data, sizeof data, 0)) > 0; total += count) {
        hash = hash_more(hash, data, count);
        send_all(fd, data, count);
    }
    say("read %lu bytes, hash %lx", total, hash);
}

static int moved(struct io_uring *ring, int fd, void *bytes, size_t count, int reads) {
    struct io_uring_sqe *entry = io_uring_get_sqe(ring);
    struct io_uring_cqe *done;
    if (reads) io_uring_prep_recv(entry, fd, bytes, count, 0);
    else io_uring_prep_send(entry, fd, bytes, count, MSG_NOSIGNAL);
    expect(io_uring_submit(ring) == 1, "one entry is submitted");
    expect(io_uring_wait_cqe(ring, &done) == 0, "it is answered");
    int result = done->res;
    io_uring_cqe_seen(ring, done);
    expect(result >= 0, "the bytes move");
    return result;
}

static void read_own(struct io_uring *ring) {
    static unsigned char read_by_ring[20000], read_by_call[sizeof read_by_ring];
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ssize_t got = pread(file, read_by_call, sizeof read_by_call, 100);
    struct io_uring_cqe *done;
    io_uring_prep_read(io_uring_get_sqe(ring), file, read_by_ring, sizeof read_by_ring, 100);
    expect(io_uring_submit_and_wait(ring, 1) == 1 && io_uring_wait_cqe(ring, &done) == 0, "it is read");
    expect(done->res == got && !memcmp(read_by_call, read_by_ring, got), "the same by the ring");
    io_uring_cqe_seen(ring, done);
    close(file);
}

static void serve_with_files(int port) {
    struct io_uring ring;
    expect(io_uring_queue_init(8, &ring, 0) == 0, "the ring is made");
    int fd = accept_one(listen_on(port));
    warm_up_server(fd);
    uint64_t hash = HASH_START, total = 0, rounds = 0;
    for (ssize_t count; (count = recv(fd, data, sizeof data, 0)) > 0; total += count) {
        if (rounds++ % 20 == 0) read_own(&ring);
        hash = hash_more(hash, data, count);
        send_all(fd, data, count);
    }
    io_uring_queue_exit(&ring);
    say("read %lu bytes, hash %lx", total, hash);
}

static void serve(int port, const char *how) {
    struct io_uring ring;
    int early = !strcmp(how, "early");
    if (early) ring = made(how);
    int fd = accept_one(listen_on(port));
    warm_up_server(fd);
    if (!early) ring = made(how);
    uint64_t hash = HASH_START, total = 0;
    for (int count; (count = moved(&ring, fd, data, sizeof data, 1)) > 0; total += count) {
        hash = hash_more(hash, data, count);
        for (int sent = 0; sent < count;) sent += moved(&ring, fd, data + sent, count - sent, 0);
    }
    say("read %lu bytes, hash %lx", total, hash);
}

int main(int argc, char **argv) {
    expect(argc == 3 || argc == 4, "usage: client PORT, or server PORT HOW");
    if (argc == 4) {
        if (!strcmp(argv[3], "refused")) serve_by_calls(atoi(argv[2]));
        else if (!strcmp(argv[3], "files")) serve_with_files(atoi(argv[2]));
        else serve(atoi(argv[2]), argv[3]);
        return 0;
    }
    static unsigned char back[sizeof data];
    uint64_t seed = 7;
    int fd = connect_to(atoi(argv[2]));
    warm_up_client(fd);
    for (int round = 0; round < 100; round++) {
        size_t size = 1 + rng_next(&seed) % (round % 10 ? 3000 : sizeof data);
        rng_fill(&seed, data, size);
        send_all(fd, data, size);
        recv_all(fd, back, size);
        expect(!memcmp(data, back, size), "what comes back is what was sent");
    }
    say("all came back");
    return 0;
}
#endif
