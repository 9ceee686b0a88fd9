/* Streams in both directions at once, on several connections, through every way to write, read and wait; each byte is
 * checked at its position. The harness meanwhile does to both processes what it likes (stress.py).
 *   stress server|client PORT CONNS SEED TALLY both|oneway
 * "oneway": the client sends only, so that a killed client leaves nothing unread and TCP delivers all that it sent. */
#include "stream.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MOST (1 << 20)
/* Turns that one connection of an event loop gets in a row. */
#define TURNS 6
/* A wait this long is one that nobody ends. */
#define QUIET_MS 15000

/* How an end waits. What has no threads of its own runs in an event loop that it shares with its like. */
enum style { THREADS, POLLS, LEVEL, EDGE, TURNTAKERS, FORKS, STYLES };

struct end {
    int fd, index, is_server;
    enum style style;
    struct half {
        struct end *end;
        struct way *way;
        uint64_t key, random;
        unsigned char *buffer;
        size_t at, filled;    /* writer: what is left of the last chunk */
        int over, waitall;    /* reader: the last MSG_WAITALL came short, so that only the end can follow */
        pthread_mutex_t lock; /* TURNTAKERS */
        int file;             /* for sendfile */
    } out, in;
};

static struct tally *tally;
static struct end ends[CONNS];
static int conns, is_oneway;

static uint64_t below(struct half *half, uint64_t bound) {
    return (rng_next(&half->random) >> 11) % bound;
}

static void fail(struct half *half, const char *what, uint64_t offset) {
    struct end *end = half->end;
    fprintf(stderr, "%s: connection %d (fd %d, style %d), %s, %s at offset %lu: %s (errno %s)\n",
            atomic_exchange(&tally->failed, 1) ? "later" : "stress", end->index, end->fd, end->style,
            end->is_server ? "server" : "client", half == &end->out ? "sending" : "receiving", offset, what,
            strerrorname_np(errno));
    for (int i = 0; i < 500 && !tally->seen; i++) usleep(10000);
    _exit(72);
}

static size_t pick_size(struct half *half) {
    uint64_t kind = below(half, 20);
    if (kind < 7) return 1 + below(half, 900);
    if (kind < 13) return 1 + below(half, 20000);
    if (kind < 18) return 1 + below(half, 131072);
    if (kind < 19) return (16384u << below(half, 7)) - 2 + below(half, 5);
    return 1 + below(half, MOST);
}

/* Now and then an end does nothing for a while: rings run full or empty, sleepers sleep. */
static void rest(struct half *half) {
    uint64_t dice = below(half, 20000);
    if (dice < 8) usleep(below(half, 20000));
    if (dice == 8) usleep(below(half, 250000));
}

/* -- writing */

static ssize_t put(struct half *half, unsigned char *from, size_t count, int flags, int *may_stop_early) {
    int fd = half->end->fd;
    size_t first = below(half, count + 1);
    struct iovec parts[3] = {{from, first}, {from + first, 0}, {from + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    off_t at = 0;
    *may_stop_early = flags & MSG_DONTWAIT;
    if (flags) return send(fd, from, count, flags | MSG_NOSIGNAL);
    switch (below(half, 8)) {
    case 0: return write(fd, from, count);
    case 1: return send(fd, from, count, MSG_NOSIGNAL);
    case 2: return writev(fd, parts, 3);
    case 3: return sendmsg(fd, &message, MSG_NOSIGNAL);
    case 4: return sendto(fd, from, count, MSG_NOSIGNAL | MSG_MORE, NULL, 0);
    case 5:
        if (count <= 100000) {
            *may_stop_early = 1;
            /* The kernel sends the file's own pages: those of an earlier call may still be on their way. */
            if (ftruncate(half->file, 0) || pwrite(half->file, from, count, 0) != (ssize_t)count) die("pwrite");
            return sendfile(fd, half->file, &at, count);
        } /* fall through */
    default: return send(fd, from, count, MSG_NOSIGNAL);
    }
}

/* One writing call. 1: bytes went; 0: it would block; -1: this direction is over. */
static int write_once(struct half *half, int blocks) {
    struct way *way = half->way;
    if (half->at == half->filled) {
        if (tally->stop || (is_oneway && half->end->is_server)) {
            /* A child of ours may have been first, and the other end may have answered that already. */
            int result = shutdown(half->end->fd, SHUT_WR), gone = errno == ENOTCONN && half->end->style == FORKS;
            if (result && !gone && !tally->killed) fail(half, "cannot shut down", way->sent);
            return -1;
        }
        rest(half);
        half->at = 0;
        half->filled = pick_size(half);
        stream_fill(half->key, way->sent, half->buffer, half->filled);
        way->asked = way->sent + half->filled;
    }
    size_t count = half->filled - half->at;
    int dontwait = blocks && below(half, 8) == 0, may_stop_early;
    ssize_t sent = put(half, half->buffer + half->at, count, dontwait ? MSG_DONTWAIT : 0, &may_stop_early);
    if (sent < 0 && errno == EAGAIN && (dontwait || !blocks)) return 0;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET) && tally->killed) return -1;
    if (sent <= 0) fail(half, sent ? "cannot send" : "nothing was sent", way->sent);
    if (blocks && !may_stop_early && (size_t)sent < count && !tally->killed && !tally->stopped) {
        fprintf(stderr, "%zd of %zu bytes were sent\n", sent, count);
        fail(half, "a blocking call sent less than all", way->sent);
    }
    half->at += sent;
    way->sent += sent;
    return 1;
}

/* -- reading */

static ssize_t fetch(struct half *half, unsigned char *to, size_t count, int flags) {
    int fd = half->end->fd;
    size_t first = below(half, count + 1);
    struct iovec parts[3] = {{to, first}, {to + first, 0}, {to + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    if (flags) return recv(fd, to, count, flags);
    switch (below(half, 6)) {
    case 0: return read(fd, to, count);
    case 1: return readv(fd, parts, 3);
    case 2: return recvmsg(fd, &message, 0);
    case 3: return recvfrom(fd, to, count, 0, NULL, NULL);
    default: return recv(fd, to, count, 0);
    }
}

static void check(struct half *half, size_t got, const char *how) {
    uint64_t at = half->way->received;
    long wrong = stream_check(half->key, at, half->buffer, got);
    if (wrong < 0) return;
    size_t left = got - wrong;
    char what[200];
    snprintf(what, sizeof what, "wrong byte %ld of %zu by %s; it and what follows belong to offset %ld", wrong, got, how,
             stream_find(half->key, at + wrong, half->buffer + wrong, left));
    fail(half, what, at + wrong);
}

static int stream_ends(struct half *half, ssize_t result) {
    struct way *way = half->way;
    if (result < 0 && !(tally->killed && errno == ECONNRESET)) fail(half, "cannot receive", way->received);
    if (result == 0 && !tally->stop && !tally->killed && !is_oneway) fail(half, "an early end of the stream", way->received);
    if (!tally->killed && way->received != way->sent) {
        fprintf(stderr, "sent %lu\n", way->sent);
        fail(half, "the stream ends, but more was sent", way->received);
    }
    if (is_oneway && half->end->is_server) {
        if (result < 0) fail(half, "a reset, though nothing was unread", way->received);
        if (way->received < way->sent) {
            fprintf(stderr, "sent %lu\n", way->sent);
            fail(half, "the sender was killed, and what its calls had returned for is missing", way->received);
        }
    }
    if (way->received > way->asked) fail(half, "more came than was sent", way->received);
    way->ended = result < 0 ? 2 : 1;
    return -1;
}

/* One reading call, or a peek and a reading call. 1: bytes came; 0: it would block; -1: this direction is over. */
static int read_once(struct half *half, int blocks) {
    rest(half);
    size_t count = pick_size(half);
    if (below(half, 16) == 0) {
        ssize_t seen = recv(half->end->fd, half->buffer, count, MSG_PEEK | (blocks ? 0 : MSG_DONTWAIT));
        if (seen > 0) check(half, seen, "MSG_PEEK");
        if (seen <= 0 && !(seen < 0 && errno == EAGAIN)) return stream_ends(half, seen);
    }
    int flags = 0, kind = below(half, 16);
    if (blocks && kind == 0) flags = MSG_WAITALL;
    if (blocks && kind == 1) flags = MSG_DONTWAIT;
    ssize_t got = fetch(half, half->buffer, count, flags);
    if (got < 0 && errno == EAGAIN && (!blocks || flags == MSG_DONTWAIT)) return 0;
    if (got <= 0) return stream_ends(half, got);
    if (half->waitall) fail(half, "bytes after a short MSG_WAITALL", half->way->received);
    half->waitall = flags == MSG_WAITALL && (size_t)got < count && !tally->stopped;
    check(half, got, "a read");
    half->way->received += got;
    return 1;
}

/* -- waiting */

/* Whether a reader that finds nothing has been forgotten. */
static int may_expect(struct half *half) {
    return tally->stop || tally->killed || half->way->sent > half->way->received;
}

static void wait_for(struct half *half, short events) {
    struct pollfd one = {.fd = half->end->fd, .events = events};
    int ready = poll(&one, 1, QUIET_MS);
    if (ready < 0 && errno != EINTR) die("poll");
    if (ready == 0 && events == POLLOUT) fail(half, "never writable again", half->way->sent);
    if (ready == 0 && may_expect(half)) fail(half, "never readable again", half->way->received);
}

/* A child shares the connection, and does what its parent would have done next. */
static void in_a_child(struct half *half, int (*once)(struct half *, int), int is_writer) {
    int rounds = 1 + below(half, 8), pause = below(half, 3) ? 0 : below(half, 100000);
    if (is_writer && tally->stop) return;
    pid_t child = fork();
    if (child < 0) die("fork");
    if (child == 0) {
        if (pause) usleep(pause);
        for (int i = 0; i < rounds || (is_writer && half->at < half->filled); i++)
            if (once(half, 1) < 0) _exit(1);
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) die("waitpid");
    if (WIFSIGNALED(status) || WEXITSTATUS(status) > 1) {
        char what[64];
        snprintf(what, sizeof what, "a child failed: signal %d, status %d", WTERMSIG(status), WEXITSTATUS(status));
        if (!tally->killed) fail(half, what, half->way->received);
        _exit(73);
    }
    if (is_writer) half->at = half->filled = 0; /* the child sent what was left of its chunk */
    half->random += 7919;
}

static void *stream(void *argument) {
    struct half *half = argument;
    struct end *end = half->end;
    int is_writer = half == &end->out, result, blocks = end->style != POLLS;
    int (*once)(struct half *, int) = is_writer ? write_once : read_once;
    for (;;) {
        if (end->style == TURNTAKERS) pthread_mutex_lock(&half->lock);
        if (end->style == FORKS && below(half, 1500) == 0 && (!is_writer || half->at == half->filled) && !half->waitall)
            in_a_child(half, once, is_writer);
        result = half->over ? -1 : once(half, blocks);
        if (result < 0) half->over = 1;
        if (end->style == TURNTAKERS) pthread_mutex_unlock(&half->lock);
        if (result < 0) return NULL;
        if (result == 0) wait_for(half, is_writer ? POLLOUT : POLLIN);
    }
}

struct loop {
    enum style style;
    uint64_t random;
};

/* Goes on with one connection of an event loop. What it still may do without waiting: EPOLLIN, EPOLLOUT. */
static uint32_t advance(struct end *end, uint32_t ready) {
    if (ready & (EPOLLHUP | EPOLLERR)) ready |= EPOLLIN | EPOLLOUT;
    if (ready & EPOLLRDHUP) ready |= EPOLLIN;
    for (int turn = 0; turn < TURNS; turn++) {
        if (ready & EPOLLIN) {
            int result = end->in.over ? -1 : read_once(&end->in, 0);
            end->in.over = result < 0;
            if (result <= 0) ready &= ~EPOLLIN;
        }
        if (ready & EPOLLOUT) {
            int result = end->out.over ? -1 : write_once(&end->out, 0);
            end->out.over = result < 0;
            if (result <= 0) ready &= ~EPOLLOUT;
        }
    }
    return ready & (EPOLLIN | EPOLLOUT);
}

static void *event_loop(void *argument) {
    struct loop *loop = argument;
    int set = epoll_create1(EPOLL_CLOEXEC), open = 0, events = loop->style == EDGE ? EPOLLET : 0;
    uint32_t wanted[CONNS] = {0}, ready[CONNS] = {0};
    for (int i = 0; i < conns; i++) {
        if (ends[i].style != loop->style) continue;
        struct epoll_event event = {.events = wanted[i] = events | EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data.u32 = i};
        if (epoll_ctl(set, EPOLL_CTL_ADD, ends[i].fd, &event)) die("epoll_ctl");
        open++;
    }
    while (open) {
        struct epoll_event event[8];
        int idle = 1;
        for (int i = 0; i < conns; i++) idle &= !(events && ready[i]);
        int64_t before = now_ms();
        int count = epoll_wait(set, event, 1 + rng_next(&loop->random) % 8, idle ? QUIET_MS : 0);
        if (count < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; count == 0 && idle && now_ms() - before > QUIET_MS - 1000 && i < conns; i++) {
            struct end *end = &ends[i];
            if (end->style != loop->style) continue;
            if (!end->out.over) fail(&end->out, "never writable again", end->out.way->sent);
            if (!end->in.over && may_expect(&end->in)) fail(&end->in, "never readable again", end->in.way->received);
        }
        for (int i = 0; i < count; i++) {
            uint32_t at = event[i].data.u32;
            if (events) ready[at] |= event[i].events;
            else ready[at] = event[i].events;
        }
        for (int i = 0; i < conns; i++) {
            struct end *end = &ends[i];
            if (end->style != loop->style || !ready[i]) continue;
            ready[i] = advance(end, ready[i]);
            if (end->in.over && end->out.over) {
                if (epoll_ctl(set, EPOLL_CTL_DEL, end->fd, NULL)) die("EPOLL_CTL_DEL");
                ready[i] = 0;
                open--;
                continue;
            }
            if (events) continue;
            ready[i] = 0;
            /* A level-triggered program asks for what it has use for; and now and then for less. */
            uint32_t wish = (end->in.over ? 0 : EPOLLIN) | (end->out.over ? 0 : EPOLLOUT);
            if (rng_next(&loop->random) % 64 == 0 && !end->in.over && !end->out.over) wish = EPOLLIN;
            if (wish != wanted[i]) {
                struct epoll_event changed = {.events = wanted[i] = wish, .data.u32 = i};
                if (epoll_ctl(set, EPOLL_CTL_MOD, end->fd, &changed)) die("EPOLL_CTL_MOD");
            }
        }
    }
    close(set);
    return NULL;
}

/* -- life */

static void prepare(struct half *half, struct end *end, int direction, uint64_t seed) {
    half->end = end;
    half->way = &tally->ways[end->index][direction];
    half->key = word_at(seed, 2 * end->index + direction);
    half->random = half->key ^ (end->is_server ? 0x5555 : 0xaaaa) ^ (half == &end->out ? 1 : 2);
    half->buffer = malloc(MOST + 8);
    half->file = memfd_create("stress", MFD_CLOEXEC);
    pthread_mutex_init(&half->lock, NULL);
}

int main(int argc, char **argv) {
    expect(argc == 7, "usage: server|client PORT CONNS SEED TALLY both|oneway");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[2]), threads = 0;
    uint64_t seed = strtoull(argv[4], NULL, 0), shift = word_at(seed, is_server ? 1001 : 1002);
    conns = atoi(argv[3]), is_oneway = !strcmp(argv[6], "oneway");
    expect(conns > 0 && conns <= CONNS, "1 to 64 connections");
    tally = open_tally(argv[5]);
    signal(SIGPIPE, SIG_IGN);
    int listener = is_server ? listen_on(port) : -1;
    for (int i = 0; i < conns; i++) {
        struct end *end = &ends[i];
        end->index = i, end->is_server = is_server;
        end->style = (i + shift) % STYLES;
        end->fd = is_server ? accept_one(listener) : connect_to(port);
        if (end->style == POLLS || end->style == LEVEL || end->style == EDGE)
            if (fcntl(end->fd, F_SETFL, fcntl(end->fd, F_GETFL) | O_NONBLOCK)) die("fcntl");
        prepare(&end->out, end, is_server, seed);
        prepare(&end->in, end, !is_server, seed);
    }
    pthread_t thread[CONNS * 4];
    static struct loop loops[STYLES];
    for (int i = 0; i < conns; i++) {
        struct end *end = &ends[i];
        int is_loop = end->style == LEVEL || end->style == EDGE, each = end->style == TURNTAKERS ? 2 : 1;
        if (is_loop && !loops[end->style].random) {
            loops[end->style] = (struct loop){end->style, end->out.random | 1};
            if (pthread_create(&thread[threads++], NULL, event_loop, &loops[end->style])) die("pthread_create");
        }
        for (int copy = 0; !is_loop && copy < each; copy++) {
            if (pthread_create(&thread[threads++], NULL, stream, &end->out)) die("pthread_create");
            if (pthread_create(&thread[threads++], NULL, stream, &end->in)) die("pthread_create");
        }
    }
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < conns; i++) close(ends[i].fd);
    say("done");
    return 0;
}
