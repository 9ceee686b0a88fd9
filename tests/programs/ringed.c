/* A server with a ring of io_uring that it makes, maps and enters by libc's own names, as libuv does. Its client is rings.c's.
 *   ringed server PORT HOW     HOW the ring is used: sets (changes of an epoll set), files (reads of a file), lane (for the connection itself),
 *                              indexed (the same, by a registered file) */
#include "bed.h"
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>

static unsigned char data[100000];

static struct {
    int fd;
    unsigned *head, *tail, *mask, *array, *done_head, *done_tail, *done_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *done;
} ring;

static void make(void) {
    struct io_uring_params made = {0};
    ring.fd = (int)syscall(SYS_io_uring_setup, 8, &made);
    expect(ring.fd >= 0, "the kernel makes a ring");
    size_t words = made.sq_off.array + made.sq_entries * sizeof(unsigned), rest = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
    char *at = mmap(NULL, words > rest ? words : rest, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    ring.entries = mmap(NULL, made.sq_entries * sizeof *ring.entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    expect(at != MAP_FAILED && (void *)ring.entries != MAP_FAILED, "the ring is mapped");
    ring.head = (void *)(at + made.sq_off.head), ring.tail = (void *)(at + made.sq_off.tail), ring.mask = (void *)(at + made.sq_off.ring_mask);
    ring.array = (void *)(at + made.sq_off.array);
    ring.done_head = (void *)(at + made.cq_off.head), ring.done_tail = (void *)(at + made.cq_off.tail);
    ring.done_mask = (void *)(at + made.cq_off.ring_mask), ring.done = (void *)(at + made.cq_off.cqes);
    /* In another order than the entries'. */
    for (unsigned slot = 0; slot < made.sq_entries; slot++) ring.array[slot] = made.sq_entries - 1 - slot;
}

/* One job, and its result. */
static int job(int code, int fd, void *bytes, unsigned length, uint64_t offset, int flags) {
    unsigned tail = *ring.tail;
    struct io_uring_sqe *entry = ring.entries + ring.array[tail & *ring.mask];
    *entry = (struct io_uring_sqe){.opcode = code, .fd = fd, .addr = (uintptr_t)bytes, .len = length, .off = offset, .flags = flags, .user_data = 5};
    __atomic_store_n(ring.tail, tail + 1, __ATOMIC_RELEASE);
    expect(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "one entry is submitted");
    unsigned head = *ring.done_head;
    expect(__atomic_load_n(ring.done_tail, __ATOMIC_ACQUIRE) == head + 1, "one is done");
    struct io_uring_cqe *done = ring.done + (head & *ring.done_mask);
    expect(done->user_data == 5, "it is this one");
    int result = done->res;
    __atomic_store_n(ring.done_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static int change(int set, int op, int fd, uint64_t word) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = word};
    return job(IORING_OP_EPOLL_CTL, set, &event, op, fd, 0);
}

static void read_own(const char *path) {
    static unsigned char read_by_ring[20000], read_by_call[sizeof read_by_ring];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = pread(file, read_by_call, sizeof read_by_call, 100);
    expect(job(IORING_OP_READ, file, read_by_ring, sizeof read_by_ring, 100, 0) == got, "as much by the ring");
    expect(got > 0 && !memcmp(read_by_call, read_by_ring, got), "the same by the ring");
    close(file);
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server PORT HOW");
    const char *how = argv[3];
    int sets = !strcmp(how, "sets"), files = !strcmp(how, "files"), indexed = !strcmp(how, "indexed");
    make();
    int set = epoll_create1(EPOLL_CLOEXEC), fd = accept_one(listen_on(atoi(argv[2])));
    warm_up_server(fd);
    if (sets) {
        expect(change(set, EPOLL_CTL_MOD, fd, 3) == -ENOENT, "nothing to change");
        expect(change(set, EPOLL_CTL_ADD, fd, 3) == 0, "it is added");
        expect(change(set, EPOLL_CTL_ADD, fd, 3) == -EEXIST, "it is there");
        expect(change(set, EPOLL_CTL_MOD, fd, 4) == 0, "it is changed");
        expect(change(set, EPOLL_CTL_ADD, 1000, 3) == -EBADF, "no descriptor");
        expect(job(IORING_OP_EPOLL_CTL, set, (void *)8, EPOLL_CTL_MOD, fd, 0) == -EFAULT, "no event");
    }
    if (indexed) expect(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, &fd, 1) == 0, "a registered file");
    uint64_t hash = HASH_START, total = 0;
    for (int round = 0;; round++) {
        ssize_t count;
        if (sets) {
            struct epoll_event event;
            expect(epoll_wait(set, &event, 1, 20000) == 1 && event.data.u64 == 4, "what was registered comes");
        }
        if (files && round % 20 == 0) read_own("/proc/self/exe");
        if (sets || files) count = recv(fd, data, sizeof data, 0);
        else count = job(IORING_OP_RECV, indexed ? 0 : fd, data, sizeof data, 0, indexed ? IOSQE_FIXED_FILE : 0);
        expect(count >= 0, "the bytes come");
        if (count == 0) break;
        hash = hash_more(hash, data, count);
        total += count;
        for (ssize_t sent = 0, more; sent < count; sent += more) {
            if (sets || files) more = send(fd, data + sent, count - sent, MSG_NOSIGNAL);
            else more = job(IORING_OP_SEND, indexed ? 0 : fd, data + sent, count - sent, 0, indexed ? IOSQE_FIXED_FILE : 0);
            expect(more > 0, "the bytes go");
        }
    }
    if (sets) {
        expect(change(set, EPOLL_CTL_DEL, fd, 0) == 0, "it is taken out");
        expect(change(set, EPOLL_CTL_DEL, fd, 0) == -ENOENT, "it is gone");
    }
    say("read %lu bytes, hash %lx", total, hash);
    return 0;
}
