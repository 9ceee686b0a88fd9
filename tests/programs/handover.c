/* A connection goes to a program that knows nothing of lanes, with bytes unread.
 *   handover server|client CASE PORT        CASE is SENDER-HOW
 *   handover reads FD|-                     the foreign program; -: the descriptor comes by SCM_RIGHTS on standard input
 * SENDER: close, shutdown, exit, or stay: what the client does behind its last byte, before the hand-over. */
#include "bed.h"
#include <spawn.h>
#include <sys/un.h>
#include <sys/wait.h>

#define SENT 50000
#define FIRST 100 /* of them are read before the hand-over */
#define LEFT (SENT - FIRST)
static unsigned char data[1 << 20];
static const char *self;
static char *bare_environment[] = {"LC_ALL=C", NULL};
static char number[16];
static char *reader[] = {"handover", "reads", number, NULL};

static void ended(pid_t child) {
    int status;
    expect(child > 0 && waitpid(child, &status, 0) == child, "the foreign program is reaped");
    say("the foreign program: %d", status);
}

static void named(int fd) { snprintf(number, sizeof number, "%d", fd); }

static void by_exec(int fd) {
    pid_t child = fork();
    if (child == 0) {
        dup2(fd, 0);
        named(0);
        execve(self, reader, bare_environment);
        _exit(70);
    }
    close(fd);
    ended(child);
}

/* As inetd without a fork: this very process becomes the other program. */
static void by_becoming(int fd) {
    dup2(fd, 0);
    dup2(fd, 9);
    close(fd);
    named(9);
    execve(self, reader, bare_environment);
    die("execve");
}

static void by_vfork(int fd) {
    named(0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        execve(self, reader, bare_environment);
        _exit(70);
    }
    ended(child);
    close(fd);
}

/* The same number is something else in the child: nothing of ours is handed over, and the parent reads all. */
static void by_mistake(int fd) {
    static unsigned char got[1 << 20];
    size_t have;
    named(0);
    pid_t child = vfork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, fd);
        dup2(fd, 0);
        execve(self, reader, bare_environment);
        _exit(70);
    }
    ended(child);
    have = recv_upto(fd, got, LEFT);
    say("%zu bytes, hash %016lx", have, hash_more(HASH_START, got, have));
}

static void by_spawn(int fd) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    named(5);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 5);
    expect(posix_spawn(&child, self, &actions, NULL, reader, bare_environment) == 0, "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    ended(child);
}

static void by_rights(int fd) {
    int ends[2];
    pid_t child;
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) die("socketpair");
    strcpy(number, "-");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    expect(posix_spawn(&child, self, &actions, NULL, reader, bare_environment) == 0, "posix_spawn");
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    struct mmsghdr batch = {message, 0};
    expect(sendmmsg(ends[0], &batch, 1, 0) == 1, "the descriptor goes");
    close(fd);
    ended(child);
}

static int reads(const char *what) {
    int fd = atoi(what);
    if (*what == '-') {
        char byte, control[CMSG_SPACE(sizeof fd)];
        struct iovec one = {&byte, 1};
        struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        expect(recvmsg(0, &message, 0) == 1, "the descriptor comes");
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    }
    size_t have = 0;
    for (ssize_t got; have < LEFT && (got = read(fd, data + have, sizeof data - have)) != 0; have += got)
        if (got < 0) die("read");
    say("%zu bytes, hash %016lx", have, hash_more(HASH_START, data, have));
    return 0;
}

static const struct {
    const char *name;
    void (*act)(int fd);
} ways[] = {
    {"exec", by_exec},   {"become", by_becoming}, {"vfork", by_vfork},
    {"spawn", by_spawn}, {"rights", by_rights},   {"mistake", by_mistake},
};

static void server(int fd, const char *how) {
    unsigned char got[FIRST];
    recv_all(fd, got, sizeof got);
    tell();
    await(); /* the sender has done what it does */
    say("the first bytes: %016lx", hash_more(HASH_START, got, sizeof got));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (!strcmp(ways[i].name, how)) ways[i].act(fd);
}

int main(int argc, char **argv) {
    self = "/proc/self/exe";
    if (argc == 3) return reads(argv[2]);
    expect(argc == 4, "usage: server|client CASE PORT");
    char sender[16], how[16];
    expect(sscanf(argv[2], "%15[^-]-%15s", sender, how) == 2, "the case is SENDER-HOW");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    sync_open(is_server);
    if (is_server) {
        int listener = listen_on(port), fd = accept_one(listener);
        close(listener);
        warm_up_server(fd);
        server(fd, how);
        return 0;
    }
    int fd = connect_to(port);
    warm_up_client(fd);
    uint64_t seed = 11;
    rng_fill(&seed, data, SENT);
    send_all(fd, data, SENT);
    await(); /* the receiver has read a little of it */
    if (!strcmp(sender, "close")) close(fd);
    if (!strcmp(sender, "shutdown")) shutdown(fd, SHUT_WR);
    say("sent");
    tell();
    if (!strcmp(sender, "stay")) recv(fd, data, 1, 0); /* asleep when the receiver wants back what it has not read */
    return 0;
}
