/* Connections of before a fork in epoll sets. One-shot entries of a set that the processes share: each event comes to one of them, with the
 * program's own word.
 *   oneshots server|client CASE PORT
 * CASE: listener (two children accept, and arm it again), or connections of before the fork, whose messages are answered by the children
 * (children), by them and the parent (family), or by the child of a parent that has closed all (orphan); `edges`: as family, edge-triggered;
 * `fired`: as children, when the parent has had an event of each before the fork, and arms them again after it;
 * `unread`: by the parent of a child that ends at once; their messages are unread at the fork, and their sender does nothing until all have been
 * answered;
 * `witness`: a child that was forked before they came waits for the parent's set, too, from when they may be on lanes on, and answers nothing;
 * `divided`: the parent keeps half of the connections and a child the other half, each in a level-triggered set of its own. Their client sends
 * at a walk and never waits in a call. */
#include "bed.h"
#include <limits.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { CHILDREN = 2, CONNECTIONS = 40, KEPT = 4, ROUNDS = 50, SIZE = 100, PATIENCE_MS = 5000 };

/* The words that the program gives to the set: none is one of ours. */
static const uint64_t LISTENER = 0x00007f0012345678u, FIRST = 0x0000560000001000u;

static int set, listener, kept[KEPT], is_divided, walks;
static uint32_t asked = EPOLLIN | EPOLLONESHOT;
static struct counts {
    int answered, strange, idle, over, is_warm;
} *counts;

/* What ends the parent's wait, in the case that has no limit of time. */
static const uint64_t OVER = 0x00007f00aaaabbbbu;
static int no_limit;

static void arm(int op, int fd, uint64_t word) {
    struct epoll_event event = {.events = asked, .data.u64 = word};
    if (epoll_ctl(set, op, fd, &event)) die("epoll_ctl");
}

static void answer(int fd) {
    char message[SIZE];
    ssize_t got = recv(fd, message, sizeof message, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) {
        __atomic_fetch_add(&counts->idle, 1, __ATOMIC_SEQ_CST);
        return;
    }
    expect(got == sizeof message, "a whole message is there");
    send_all(fd, message, sizeof message);
    __atomic_fetch_add(&counts->answered, 1, __ATOMIC_SEQ_CST);
}

/* Takes events of the set, until all is over or so much is answered. */
static void serve(int most) {
    while (!__atomic_load_n(&counts->over, __ATOMIC_SEQ_CST) && __atomic_load_n(&counts->answered, __ATOMIC_SEQ_CST) < most) {
        struct epoll_event event;
        int n = epoll_wait(set, &event, 1, no_limit ? -1 : most == KEPT ? PATIENCE_MS : 20);
        if (n < 0 && errno != EINTR) die("epoll_wait");
        expect(n != 0 || most != KEPT, "told of what was unread at the fork");
        if (n <= 0) continue;
        uint64_t word = event.data.u64;
        if (word == OVER) return;
        if (word == LISTENER) {
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) {
                char message[SIZE];
                recv_all(fd, message, sizeof message);
                send_all(fd, message, sizeof message);
                close(fd);
                __atomic_fetch_add(&counts->answered, 1, __ATOMIC_SEQ_CST);
            } else if (errno == EAGAIN) {
                __atomic_fetch_add(&counts->idle, 1, __ATOMIC_SEQ_CST);
            } else {
                die("accept");
            }
            arm(EPOLL_CTL_MOD, listener, LISTENER);
        } else if (word - FIRST < KEPT) {
            answer(kept[word - FIRST]);
            arm(EPOLL_CTL_MOD, kept[word - FIRST], word);
        } else {
            __atomic_fetch_add(&counts->strange, 1, __ATOMIC_SEQ_CST);
        }
    }
}

/* Of the connections the process keeps those of one half, in a set of its own. */
static void keeps_half(int half) {
    close(set);
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < KEPT; i++) {
        if (i / (KEPT / 2) == half) {
            arm(EPOLL_CTL_ADD, kept[i], FIRST + i);
        } else {
            close(kept[i]);
        }
    }
}

/* Takes events of the set, and does nothing about them. */
static void sees(void) {
    struct epoll_event event;
    while (!__atomic_load_n(&counts->is_warm, __ATOMIC_SEQ_CST)) usleep(1000);
    while (!__atomic_load_n(&counts->over, __ATOMIC_SEQ_CST)) epoll_wait(set, &event, 1, 1);
    _exit(0);
}

/* Messages of before the fork: the connections may come on lanes. */
static void warm_up(void) {
    struct epoll_event event;
    int ended = 0;
    while (ended < KEPT) {
        int n = epoll_wait(set, &event, 1, PATIENCE_MS);
        expect(n == 1, "a message comes before the fork");
        char message[SIZE];
        int fd = kept[event.data.u64 - FIRST];
        recv_all(fd, message, sizeof message);
        ended += message[0] == 'e';
        send_all(fd, message, sizeof message);
        arm(EPOLL_CTL_MOD, fd, event.data.u64);
    }
}

static void server(int port, const char *how) {
    int is_listener = !strcmp(how, "listener"), is_orphan = !strcmp(how, "orphan"), is_fired = !strcmp(how, "fired");
    int is_unread = !strcmp(how, "unread"), children = is_orphan || is_unread || is_divided ? 1 : CHILDREN;
    int is_seen = !strcmp(how, "witness"), ends[2];
    pid_t child[CHILDREN + 1];
    struct epoll_event event;
    if (!strcmp(how, "edges")) asked |= EPOLLET;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    set = epoll_create1(EPOLL_CLOEXEC);
    listener = listen_on(port);
    if (is_seen) {
        children = 1;
        asked = EPOLLIN;
        if (pipe(ends)) die("pipe");
        arm(EPOLL_CTL_ADD, ends[0], OVER);
        expect(epoll_wait(set, &event, 1, 0) == 0, "nothing yet");
        if ((child[0] = fork()) == 0) sees();
    }
    if (is_listener) {
        fcntl(listener, F_SETFL, O_NONBLOCK);
        arm(EPOLL_CTL_ADD, listener, LISTENER);
        expect(epoll_wait(set, &event, 1, 0) == 0, "nobody has connected");
        /* Armed again by who has waited for the set. */
        arm(EPOLL_CTL_MOD, listener, LISTENER);
    } else {
        for (int i = 0; i < KEPT; i++) arm(EPOLL_CTL_ADD, kept[i] = accept_one(listener), FIRST + i);
        warm_up();
    }
    if (is_fired) {
        for (int i = 0; i < KEPT; i++) expect(epoll_wait(set, &event, 1, PATIENCE_MS) == 1, "one event of each");
        expect(epoll_wait(set, &event, 1, 0) == 0, "and no more");
    }
    for (int i = 0, n = 0; is_unread && i < KEPT; i += n == SIZE) {
        if (ioctl(kept[i], FIONREAD, &n)) die("FIONREAD");
    }
    no_limit = counts->is_warm = is_seen;
    for (int i = 0; i < children && !is_seen; i++) {
        if ((child[i] = fork()) < 0) die("fork");
        if (child[i] == 0) {
            if (is_divided) keeps_half(1);
            if (!is_unread) serve(INT_MAX);
            _exit(0);
        }
    }
    if (is_fired) {
        usleep(100000);
        expect(counts->answered == 0, "nobody is told before they are armed");
        for (int i = 0; i < KEPT; i++) arm(EPOLL_CTL_MOD, kept[i], FIRST + i);
    }
    if (is_divided) keeps_half(0);
    if (is_unread) serve(KEPT);
    tell();
    if (is_orphan) {
        /* It goes on to use the set when the parent has closed all. */
        for (int i = 0; i < KEPT; i++) close(kept[i]);
        close(set);
    } else if (!strcmp(how, "family") || !strcmp(how, "edges") || is_unread || is_divided || is_seen) {
        child[children++] = fork();
        if (child[children - 1] == 0) {
            await();
            counts->over = 1;
            if (is_seen && write(ends[1], "x", 1) != 1) die("write");
            _exit(0);
        }
        serve(INT_MAX);
    }
    if (!counts->over) {
        await();
        counts->over = 1;
    }
    for (int i = 0; i < children; i++) {
        int status;
        waitpid(child[i], &status, 0);
        expect(status == 0, "each child ends well");
    }
    say("answered %d, strange %d, idle %d", counts->answered, counts->strange, counts->idle);
    tell();
}

static void ask(int fd, char first) {
    char message[SIZE] = {first};
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    send_all(fd, message, sizeof message);
}

static int is_told(int fd) {
    char message[SIZE];
    if (walks) {
        int64_t until = now_ms() + PATIENCE_MS;
        usleep(5000);
        while (now_ms() < until) {
            if (recv(fd, message, sizeof message, MSG_DONTWAIT) == sizeof message) return 1;
            usleep(200);
        }
        return 0;
    }
    return recv(fd, message, sizeof message, MSG_WAITALL) == sizeof message;
}

static int is_answered(int fd, char first) {
    ask(fd, first);
    return is_told(fd);
}

static void client(int port, const char *how) {
    int answered = 0, fds[KEPT];
    if (!strcmp(how, "listener")) {
        await();
        for (int i = 0; i < CONNECTIONS; i++) {
            int fd = connect_to(port);
            if (!is_answered(fd, 'c')) break;
            answered++;
            close(fd);
        }
    } else {
        for (int i = 0; i < KEPT; i++) fds[i] = connect_to(port);
        int64_t began = now_ms();
        for (int round = 0, warm = 0; !warm; round++) {
            if (round > 256) usleep(1000);
            warm = is_warm(round, began);
            for (int i = 0; i < KEPT; i++) expect(is_answered(fds[i], warm ? 'e' : 'c'), "answered before the fork");
        }
        int ahead = strcmp(how, "fired") && strcmp(how, "unread") ? 0 : KEPT;
        for (int i = 0; i < ahead; i++) ask(fds[i], 'c');
        await();
        walks = is_divided;
        for (int i = 0; i < KEPT * ROUNDS; i++) {
            if (i >= ahead ? !is_answered(fds[i % KEPT], 'c') : !is_told(fds[i])) break;
            answered++;
        }
    }
    say("answered %d", answered);
    tell();
    await();
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    is_divided = !strcmp(argv[2], "divided");
    if (is_divided) asked = EPOLLIN;
    sync_open(is_server);
    if (is_server)
        server(port, argv[2]);
    else
        client(port, argv[2]);
    return 0;
}
