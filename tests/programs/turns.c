/* Messages of 14 bytes to and fro, in turns that the test asks for: what who stays on TCP pays.
 *   turns server HOW PORT
 *   turns client HOW PORT ROUNDS    as many in each turn; one for each byte of the test's to the client, which answers when it is over
 * HOW: read, poll or epoll before each read, filter (one of system calls, by the program itself), chroot (likewise) */
#include "bed.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

static const char *how;
static int fd, set = -1;

static void prepare(void) {
    if (!strcmp(how, "epoll")) {
        struct epoll_event readable = {.events = EPOLLIN};
        if ((set = epoll_create1(0)) < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &readable)) die("epoll");
    } else if (!strcmp(how, "filter")) {
        struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &allow};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
    }
}

/* Whether a whole message came; it never comes in pieces. */
static int take(unsigned char *message, size_t count) {
    if (!strcmp(how, "poll")) {
        struct pollfd readable = {fd, POLLIN, 0};
        int told;
        while ((told = poll(&readable, 1, -1)) < 0 && errno == EINTR) {}
        expect(told == 1, "poll tells of a message");
    } else if (set >= 0) {
        struct epoll_event readable;
        int told;
        while ((told = epoll_wait(set, &readable, 1, -1)) < 0 && errno == EINTR) {}
        expect(told == 1, "epoll_wait tells of a message");
    }
    ssize_t got = read(fd, message, count);
    expect(got == (ssize_t)count || got == 0, "a message is whole");
    return got > 0;
}

static void give(const unsigned char *message, size_t count) {
    expect(write(fd, message, count) == (ssize_t)count, "a message goes out");
}

int main(int argc, char **argv) {
    expect(argc == 5 || (argc == 4 && !strcmp(argv[1], "server")), "usage: server HOW PORT | client HOW PORT ROUNDS");
    unsigned char message[14] = "to and fro";
    how = argv[2];
    if (argc == 5) sync_open(0);
    if (!strcmp(how, "chroot") && chroot(getenv("BED_SYNC"))) die("chroot");
    if (argc == 4) {
        fd = accept_one(listen_on(atoi(argv[3])));
        prepare();
        while (take(message, sizeof message)) give(message, sizeof message);
        return 0;
    }
    fd = connect_to(atoi(argv[3]));
    prepare();
    for (char byte; read(wait_fd, &byte, 1) == 1 && byte == '!'; tell()) {
        for (int left = atoi(argv[4]); left > 0; left--) {
            message[13] = left;
            give(message, sizeof message);
            expect(take(message, sizeof message) && message[13] == (unsigned char)left, "the answer is the message");
        }
    }
    close(fd);
    say("done");
    return 0;
}
