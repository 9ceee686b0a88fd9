/* MSG_ZEROCOPY on lanes where it saves a copy: which bytes arrive, which notices tell of them, and what becomes of bytes that
 * the reader had not read when their sender closed, forked, executed something else, ended, or took its memory away.
 *   lent server|client CASE PORT */
#include "bed.h"
#include <linux/errqueue.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define GUARD_INSTALL 102 /* MADV_GUARD_INSTALL, Linux 6.13 */
#define ZC (MSG_ZEROCOPY | MSG_NOSIGNAL)
#define KIB 1024
#define MIB (1 << 20)
#define PART (128 * KIB) /* fits into a lane that nobody reads */

static unsigned char *data;
static uint64_t hash = HASH_START;
static unsigned calls, told, copied; /* calls with a notice to come, told of with all before them, told of as copied */
static unsigned char is_told[1 << 16];

static void *pages(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

/* How memory goes before its notice (BED_HOW): some only goes where it is shared. */
static int goes_by(const char *how) {
    const char *wanted = getenv("BED_HOW");
    return wanted && !strncmp(wanted, how, strlen(how));
}

static void *shared_pages(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    return at;
}

static void begin(int fd) {
    uint64_t seed = 11;
    int on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)) die("SO_ZEROCOPY");
    if (getenv("BED_HIDDEN")) prctl(PR_SET_DUMPABLE, 0);
    data = goes_by("removed") || goes_by("remapped") ? shared_pages(32 * MIB) : pages(32 * MIB);
    rng_fill(&seed, data, 32 * MIB);
}

static void take_notices(int fd) {
    for (;;) {
        union { char bytes[256]; struct cmsghdr align; } control;
        struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0) {
            if (errno == EAGAIN) return;
            die("recvmsg");
        }
        struct sock_extended_err *notice = (void *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        unsigned first = notice->ee_info, after = notice->ee_data + 1;
        expect(notice->ee_origin == SO_EE_ORIGIN_ZEROCOPY && first < after && after <= calls, "numbers of calls that were made");
        /* The kernel's own come in another order at times. */
        if (getenv("BED_ORDER")) expect(first == told, "numbers follow each other");
        for (unsigned number = first; number < after; number++) {
            expect(number < sizeof is_told && !is_told[number], "each call is told of once");
            is_told[number] = 1;
        }
        while (told < sizeof is_told && is_told[told]) told++;
        if (notice->ee_code == SO_EE_CODE_ZEROCOPY_COPIED) copied += after - first;
        else expect(notice->ee_code == 0, "a code that there is");
    }
}

static void await_told(int fd, unsigned count) {
    while (take_notices(fd), (int)(count - told) > 0) {
        struct pollfd one = {fd, 0, 0};
        expect(poll(&one, 1, 10000) == 1, "a notice comes");
        expect(one.revents & POLLERR, "an unread notice is POLLERR");
    }
}

static void send_vector(int fd, struct iovec *parts, int count, int flags) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        hash = hash_more(hash, parts[i].iov_base, parts[i].iov_len);
        size += parts[i].iov_len;
    }
    expect(sendmsg(fd, &message, flags) == (ssize_t)size, "a blocking call sends all");
    calls += flags & MSG_ZEROCOPY && size > 0;
}

static void send_one(int fd, void *from, size_t size, int flags) {
    struct iovec one = {from, size};
    send_vector(fd, &one, 1, flags);
}

/* The first call announces, and is copied: from its reading on the reader may be lent to. Over the second one the lane grows.
 * From there on calls are counted anew. */
static void introduce(int fd) {
    char byte;
    send_one(fd, data, 64 * KIB, ZC);
    recv_all(fd, &byte, 1);
    await_told(fd, 1);
    expect(copied == 1, "the first call is copied");
    send_one(fd, data, 4 * MIB, ZC);
    recv_all(fd, &byte, 1);
    await_told(fd, 2);
    copied = 0;
}

#define CALLS (calls - 2)

static void be_introduced(int fd) {
    static const int sizes[] = {64 * KIB, 4 * MIB};
    data = pages(32 * MIB);
    for (int i = 0; i < 2; i++) {
        recv_all(fd, data, sizes[i]);
        hash = hash_more(hash, data, sizes[i]);
        send_all(fd, "!", 1);
    }
}

static void overwrite(void) {
    memset(data, 0xee, 32 * MIB);
}

/* -- all sizes, flagged and not, of one piece and of several; read in all ways -- */
static void mixed_client(int fd) {
    uint64_t seed = 5;
    begin(fd);
    introduce(fd);
    for (size_t sent = 0; sent < 96 * MIB;) {
        struct iovec parts[5];
        int count = 1 + rng_next(&seed) % 5;
        for (int i = 0; i < count; i++) {
            static const size_t sizes[] = {100, 4 * KIB, 40 * KIB, 64 * KIB, 256 * KIB, MIB};
            size_t size = rng_next(&seed) % sizes[rng_next(&seed) % 6];
            parts[i] = (struct iovec){data + rng_next(&seed) % (31 * MIB), size};
            sent += size;
        }
        send_vector(fd, parts, count, rng_next(&seed) % 4 ? ZC : MSG_NOSIGNAL);
        if (rng_next(&seed) % 8 == 0) take_notices(fd);
    }
    await_told(fd, calls);
    say("not all copied: %d", copied < CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

static void mixed_server(int fd) {
    uint64_t seed = 6;
    unsigned char *peeked = pages(MIB);
    be_introduced(fd);
    for (;;) {
        size_t size = 1 + rng_next(&seed) % (rng_next(&seed) % 3 ? MIB : 3000), way = rng_next(&seed) % 6;
        struct iovec parts[3] = {{data, size / 3}, {data + size / 3, size / 7}, {data + size / 3 + size / 7, size}};
        ssize_t before = way == 0 ? recv(fd, peeked, size, MSG_PEEK) : 0;
        ssize_t got = way == 1 ? recv(fd, data, size, MSG_WAITALL) : way == 2 ? readv(fd, parts, 3) : recv(fd, data, size, 0);
        if (got < 0 || before < 0) die("recv");
        if (!got) break;
        if (way == 0) {
            ssize_t both = got < before ? got : before;
            expect(!memcmp(peeked, data, both), "what was peeked at is read");
        }
        hash = hash_more(hash, data, got);
    }
    say("hash %016lx", hash);
    tell();
}

/* -- buffers that are written anew as soon as they are told of; a thread that sends, one that reads notices -- */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int shared_fd;

static void *reuser(void *which) {
    uint64_t seed = (uintptr_t)which;
    unsigned char *buffer = data + (uintptr_t)which * 2 * MIB;
    for (int round = 0; round < 40; round++) {
        size_t size = 8 * KIB + rng_next(&seed) % MIB;
        rng_fill(&seed, buffer, size);
        pthread_mutex_lock(&lock);
        send_one(shared_fd, buffer, size, ZC);
        unsigned number = calls;
        pthread_mutex_unlock(&lock);
        for (int over = 0; !over;) {
            struct pollfd one = {shared_fd, 0, 0};
            poll(&one, 1, 1);
            pthread_mutex_lock(&lock);
            take_notices(shared_fd);
            over = (int)(told - number) >= 0;
            pthread_mutex_unlock(&lock);
        }
    }
    return NULL;
}

static void reused_client(int fd) {
    pthread_t threads[3];
    begin(fd);
    introduce(fd);
    shared_fd = fd;
    for (uintptr_t i = 0; i < 3; i++) pthread_create(threads + i, NULL, reuser, (void *)i);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    say("not all copied: %d", copied < CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- one call of BED_CALL MiB -- */
static void huge_client(int fd) {
    const char *wish = getenv("BED_CALL");
    size_t size = (size_t)(wish ? atoi(wish) : 256) * MIB;
    begin(fd);
    introduce(fd);
    unsigned char *all = pages(size);
    for (size_t at = 0; at < size; at += MIB) memcpy(all + at, data + at / MIB % 31 * 1000, MIB);
    send_one(fd, all, size, ZC);
    await_told(fd, calls);
    say("not all copied: %d", copied < CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- memory that is sent again and again, and memory of which little is there -- */
static int huge_kib(void *at) {
    char line[256];
    unsigned long begin, end;
    int kib = -1, found = 0;
    FILE *maps = fopen("/proc/self/smaps", "re");
    if (!maps) die("smaps");
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) found = begin <= (uintptr_t)at && (uintptr_t)at < end;
        if (found && sscanf(line, "AnonHugePages: %d", &kib) == 1) break;
    }
    fclose(maps);
    return kib;
}

static void hot_client(int fd) {
    begin(fd);
    introduce(fd);
    unsigned char *area = pages(64 * MIB), *hot = area + 4 * MIB - (uintptr_t)area % (2 * MIB), *thin = hot + 16 * MIB;
    mprotect(thin - MIB, MIB, PROT_NONE), mprotect(thin + 4 * MIB, MIB, PROT_NONE); /* mappings of which the kernel gives account */
    memcpy(hot, data, 2 * MIB), memcpy(thin, data, 256 * KIB);
    for (int i = 0; i < 200; i++) {
        send_one(fd, hot + i % 8 * 256 * KIB, 256 * KIB, ZC);
        send_one(fd, thin, 256 * KIB, ZC);
    }
    await_told(fd, calls);
    say("huge: %d, thin: %d", huge_kib(hot), huge_kib(thin));
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- small calls, and calls with a small part -- */
static void small_client(int fd) {
    begin(fd);
    introduce(fd);
    for (int i = 0; i < 20; i++) send_one(fd, data + i * 4 * KIB, 4 * KIB, ZC);
    await_told(fd, calls);
    say("all copied: %d", copied == CALLS);
    say("nowhere: %s", outcome(send(fd, (void *)4096, PART, ZC)));
    struct iovec parts[3] = {{data, 10}, {data + 5, PART}, {data + 9, 10}};
    send_vector(fd, parts, 3, ZC);
    await_told(fd, calls);
    say("one with small parts, too: %d", copied == CALLS);
    send_one(fd, data, PART, ZC);
    await_told(fd, calls);
    say("one without is not: %d", copied == CALLS - 1);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- what is under way when something ends -- */
static void under_way(int fd) {
    begin(fd);
    introduce(fd);
    send_one(fd, data + MIB, 1000, MSG_NOSIGNAL);
    send_one(fd, data + 2 * MIB, PART, ZC);
    take_notices(fd);
    say("complete: %d", told == calls);
    say("hash %016lx", hash);
}

static void reads_on(int fd) {
    await();
    for (ssize_t got; (got = recv(fd, data, MIB, 0)) != 0; hash = hash_more(hash, data, got))
        if (got < 0) die("recv");
    say("hash %016lx", hash);
    tell();
}

static void reads_when_told(int fd) {
    be_introduced(fd);
    reads_on(fd);
}

static void reads_when_orphaned(int fd) {
    be_introduced(fd);
    await();
    reads_on(fd);
}

static void closed_client(int fd) {
    under_way(fd);
    close(fd);
    overwrite();
    tell();
    await();
}

static void shut_client(int fd) {
    under_way(fd);
    shutdown(fd, SHUT_WR);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    overwrite();
    tell();
    await();
}

/* Waits for the notice longer than the grace: it may be that nobody reads before. */
static void awaited_client(int fd) {
    under_way(fd);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    overwrite();
    shutdown(fd, SHUT_WR);
    tell();
    await();
}

/* Whoever does not wait has lent for as long as it takes. */
static void unread_client(int fd) {
    under_way(fd);
    sleep(1);
    tell();
    usleep(200000);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    shutdown(fd, SHUT_WR);
    await();
}

static void forked_client(int fd) {
    under_way(fd);
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        overwrite();
        if (send(fd, data, PART, ZC) != PART) die("send");
        _exit(0);
    }
    int status;
    expect(waitpid(child, &status, 0) == child && status == 0, "the child sends");
    unsigned char *same = pages(PART);
    memset(same, 0xee, PART);
    hash = hash_more(hash, same, PART), calls++;
    overwrite();
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    send_one(fd, data, PART, ZC);
    tell();
    await_told(fd, calls);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

static void revoked_client(int fd) {
    under_way(fd);
    await(); /* the operator revokes, and tells */
    send_one(fd, data, 1000, MSG_NOSIGNAL);
    overwrite();
    tell();
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

static void hidden_client(int fd) {
    under_way(fd);
    prctl(PR_SET_DUMPABLE, 0);
    overwrite();
    tell();
    send_one(fd, data, PART, ZC);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- which of prctl's values it is counts, also where it goes by syscall(2) -- */
static void shown_client(int fd) {
    under_way(fd);
    expect(syscall(SYS_prctl, PR_SET_DUMPABLE, 1) == 0, "it may be looked at");
    expect(prctl(PR_GET_DUMPABLE) == 1, "it may still");
    tell();
    send_one(fd, data, PART, ZC);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

static void hidden_by_syscall_client(int fd) {
    under_way(fd);
    expect(syscall(SYS_prctl, PR_SET_DUMPABLE, 0) == 0, "it may not be looked at");
    overwrite();
    tell();
    send_one(fd, data, PART, ZC);
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

/* -- a reader that becomes somebody else while it is lent to -- */
static void denied_client(int fd) {
    char byte;
    under_way(fd);
    tell();
    recv_all(fd, &byte, 1);
    await(); /* somebody looks where the connection runs */
    await_told(fd, calls);
    say("copied: %d", copied == CALLS);
    overwrite();
    for (int i = 0; i < 8; i++) send_one(fd, data, PART, ZC);
    await_told(fd, calls);
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    await();
}

static void become_another(void) {
    await();
    expect(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0, "root gives up its rights");
}

/* Waits in recv, or in poll and reads what is there then. */
static void reads_as_another(int fd, int polls) {
    be_introduced(fd);
    become_another();
    for (size_t total = 0;;) {
        struct pollfd one = {fd, POLLIN, 0};
        if (polls) expect(poll(&one, 1, 20000) == 1, "bytes, or the end, come");
        ssize_t got = recv(fd, data, 7000, polls ? MSG_DONTWAIT : 0);
        if (got < 0 && !(polls && errno == EAGAIN)) die("recv");
        if (got == 0) break;
        if (got < 0) continue;
        hash = hash_more(hash, data, got);
        if (total < 1000 + PART && total + got >= 1000 + PART) send_all(fd, "!", 1);
        total += got;
    }
    say("hash %016lx", hash);
    tell();
}

static void receives_as_another(int fd) {
    reads_as_another(fd, 0);
}

static void polls_as_another(int fd) {
    reads_as_another(fd, 1);
}

static void silent_client(int fd) {
    under_way(fd);
    tell();
    await(); /* is killed here */
}

static void reads_the_rest_as_another(int fd) {
    be_introduced(fd);
    become_another();
    size_t total = 0;
    ssize_t got;
    for (; (got = recv(fd, data, 700, MSG_DONTWAIT)) > 0; total += got) {}
    say("%zu bytes, then %s", total, outcome(got));
    for (; (got = recv(fd, data, 700, 0)) > 0; total += got) {}
    say("%zu bytes, %s", total, outcome(got));
}

/* -- ends of the process -- */
static void exits_client(int fd) {
    under_way(fd);
    exit(0);
}

static void leaves_client(int fd) {
    under_way(fd);
    _exit(0);
}

static void executes_client(int fd) {
    under_way(fd);
    execl("/bin/true", "true", NULL);
    die("execl");
}

static void killed_client(int fd) {
    under_way(fd);
    raise(SIGKILL);
}

/* Reads what is left of a sender that is gone: how many bytes, and how it ends. */
static void reads_the_rest(int fd) {
    struct pollfd one = {fd, POLLRDHUP, 0};
    be_introduced(fd);
    while (poll(&one, 1, 10000) != 1 || !(one.revents & (POLLRDHUP | POLLHUP))) {}
    size_t total = 0;
    ssize_t got;
    for (; (got = recv(fd, data, 700, 0)) > 0; total += got) hash = hash_more(hash, data, got);
    say("%zu bytes, %s", total, outcome(got));
    if (!got) say("hash %016lx", hash);
}

/* -- memory that goes before its notice: TCP has pinned the pages -- */
static int goes(unsigned char *at, size_t size) {
    int self = goes_by("advised") ? syscall(SYS_pidfd_open, getpid(), 0) : -1;
    struct iovec one = {at, size};
    if (goes_by("unmapped")) return munmap(at, size);
    if (goes_by("by-syscall")) return syscall(SYS_munmap, at, size);
    if (goes_by("discarded")) return madvise(at, size, MADV_DONTNEED);
    if (goes_by("freed-lazily")) return madvise(at, size, MADV_FREE);
    if (goes_by("removed")) return madvise(at, size, MADV_REMOVE);
    if (goes_by("guarded")) return madvise(at, size, GUARD_INSTALL);
    if (goes_by("replaced")) return mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at ? 0 : -1;
    if (goes_by("protected")) return mprotect(at, size, PROT_NONE);
    if (goes_by("keyed-by-syscall")) return syscall(SYS_pkey_mprotect, at, size, PROT_NONE, pkey_alloc(0, 0));
    if (goes_by("keyed")) return pkey_mprotect(at, size, PROT_NONE, pkey_alloc(0, 0));
    if (goes_by("advised-by-syscall")) return syscall(SYS_process_madvise, self, &one, 1, MADV_DONTNEED, 0) < 0 ? -1 : 0;
    if (goes_by("advised")) return process_madvise(self, &one, 1, MADV_DONTNEED, 0) < 0 ? -1 : 0;
    /* What lies 16 MiB further on is here from now on, too. */
    if (goes_by("remapped-by-syscall")) return syscall(SYS_remap_file_pages, at, size / 2, 0, size / 2 / 4096, 0);
    if (goes_by("remapped")) return remap_file_pages(at, size / 2, 0, size / 2 / 4096, 0);
    if (goes_by("moved")) return mremap(at, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, pages(size)) == MAP_FAILED ? -1 : 0;
    if (goes_by("shrunk")) return mremap(at, size, 4096, 0) == at ? 0 : -1;
    expect(0, "a way to go");
    return -1;
}

static void gone_client(int fd) {
    under_way(fd);
    if (goes(data, 32 * MIB)) say("not here: %s", outcome(-1));
    take_notices(fd);
    say("complete then: %d", told == calls);
    shutdown(fd, SHUT_WR);
    tell();
    await();
}

/* -- memory that is no mapping of the program's own: of brk, of System V, of a file. It is gone before anybody reads -- */
static void elsewhere_client(int fd) {
    const char *whose = getenv("BED_MEMORY");
    unsigned char *at = MAP_FAILED;
    int id = -1;
    begin(fd);
    introduce(fd);
    if (!strcmp(whose, "brk")) {
        at = sbrk(PART);
    } else if (!strcmp(whose, "shm")) {
        id = shmget(IPC_PRIVATE, PART, 0600);
        at = shmat(id, NULL, 0);
        shmctl(id, IPC_RMID, NULL);
    } else {
        FILE *file = tmpfile();
        expect(file && ftruncate(fileno(file), PART) == 0, "there is a file");
        at = mmap(NULL, PART, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        fclose(file);
    }
    if (at == MAP_FAILED) die(whose);
    memcpy(at, data + MIB, PART);
    send_one(fd, at, PART, ZC);
    take_notices(fd);
    say("complete: %d", told == calls);
    say("hash %016lx", hash);
    if (!strcmp(whose, "brk")) expect(sbrk(-PART) != MAP_FAILED, "the break goes back");
    else if (!strcmp(whose, "shm")) expect(shmdt(at) == 0, "it is detached");
    else expect(munmap(at, PART) == 0, "it is unmapped");
    shutdown(fd, SHUT_WR);
    tell();
    await();
}

/* What malloc has from the kernel it gives back where no hook sees it. */
static void freed_client(int fd) {
    unsigned char *block = malloc(4 * MIB);
    begin(fd);
    introduce(fd);
    memcpy(block, data, 4 * MIB);
    send_one(fd, block + MIB, PART, ZC);
    free(block);
    for (int i = 0; i < 4; i++) memset(pages(4 * MIB), 0xee, 4 * MIB);
    say("hash %016lx", hash);
    shutdown(fd, SHUT_WR);
    tell();
    await();
}

/* Nobody sees it go: the sender, asked for the bytes, has them no more. */
static void unseen_client(int fd) {
    struct pollfd one = {fd, POLLIN, 0};
    under_way(fd);
    unseen_call(SYS_munmap, (long)data, 32 * MIB, 0, 0);
    tell();
    expect(poll(&one, 1, 10000) == 1, "the sender hears of the end, too");
    await();
}

/* -- the first thread has ended: nobody can read by its process's number any more -- */
static pthread_t first;

static void *goes_on(void *argument) {
    int fd = *(int *)argument;
    under_way(fd);
    tell();
    pthread_cancel(first);
    for (char state = 'R'; state != 'Z'; usleep(1000)) {
        FILE *stat = fopen("/proc/self/stat", "re");
        if (!stat || fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) die("stat");
        fclose(stat);
    }
    tell();
    await_told(fd, calls);
    shutdown(fd, SHUT_WR);
    await();
    say("done");
    exit(0);
}

static void orphaned_client(int fd) {
    pthread_t other;
    int kept = fd;
    first = pthread_self();
    pthread_create(&other, NULL, goes_on, &kept);
    for (;;) pause(); /* is cancelled here */
}

/* -- a child asks for its parent's notices -- */
#define TOLD_CALLS 48

static void told_in_a_child_server(int fd) {
    be_introduced(fd);
    recv_all(fd, data, TOLD_CALLS / 12 * (40 + 11 * 4) * KIB);
    hash = hash_more(hash, data, TOLD_CALLS / 12 * (40 + 11 * 4) * KIB);
    send_all(fd, "!", 1);
    reads_on(fd);
}

static void told_in_a_child_client(int fd) {
    char byte;
    begin(fd);
    introduce(fd);
    for (int i = 0; i < TOLD_CALLS; i++) send_one(fd, data + i * 4 * KIB, i % 12 ? 4 * KIB : 40 * KIB, ZC);
    recv_all(fd, &byte, 1); /* all is read: what waits is told of with another code than what is unread */
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        await_told(fd, calls);
        say("the child was told of all: %d", told == calls);
        _exit(0);
    }
    int status;
    expect(waitpid(child, &status, 0) == child && !status, "the child ends well");
    shutdown(fd, SHUT_WR);
    say("hash %016lx", hash);
    tell();
    await();
}

static void reads_the_unmapped(int fd) {
    be_introduced(fd);
    await();
    size_t total = 0;
    ssize_t got;
    for (; (got = recv(fd, data, 100000, 0)) > 0; total += got) {}
    say("%zu bytes, %s", total, outcome(got));
    tell();
}

static const struct bed_case cases[] = {
    {"mixed", mixed_server, mixed_client},
    {"reused", mixed_server, reused_client},
    {"huge", mixed_server, huge_client},
    {"hot", mixed_server, hot_client},
    {"small", mixed_server, small_client},
    {"closed", reads_when_told, closed_client},
    {"shut", reads_when_told, shut_client},
    {"awaited", reads_when_told, awaited_client},
    {"unread", reads_when_told, unread_client},
    {"forked", reads_when_told, forked_client},
    {"revoked", reads_when_told, revoked_client},
    {"hidden", reads_when_told, hidden_client},
    {"hidden-by-syscall", reads_when_told, hidden_by_syscall_client},
    {"shown", reads_when_told, shown_client},
    {"denied", receives_as_another, denied_client},
    {"denied-polled", polls_as_another, denied_client},
    {"denied-killed", reads_the_rest_as_another, silent_client},
    {"exits", reads_the_rest, exits_client},
    {"leaves", reads_the_rest, leaves_client},
    {"executes", reads_the_rest, executes_client},
    {"killed", reads_the_rest, killed_client},
    {"gone", reads_when_told, gone_client},
    {"freed", reads_when_told, freed_client},
    {"elsewhere", reads_when_told, elsewhere_client},
    {"unseen", reads_the_unmapped, unseen_client},
    {"orphaned", reads_when_orphaned, orphaned_client},
    {"told-in-a-child", told_in_a_child_server, told_in_a_child_client},
    {0},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
