/* A socket that has a second name before it is connected: whoever reads does so by the other one. A stream one way comes first, so that
   a lane would open before anything is read.
   named server PORT            takes STREAM bytes, and answers by 1000
   named client HOW PORT        HOW: duplicate, moved (the first name is closed), forked, child (which connects), sent (by SCM_RIGHTS) */
#include "bed.h"
#include <sys/wait.h>

enum { STREAM = 60 << 20, ANSWER = 1000 };
static char bytes[1 << 16];

static void connects(int fd, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (void *)&to, sizeof to)) die("connect");
    for (size_t sent = 0; sent < STREAM; sent += sizeof bytes) send_all(fd, bytes, sizeof bytes);
}

static void reads(int fd) {
    size_t got = 0;
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0) got += n;
    say("read: %zu, %s", got, outcome(n));
}

static void sends_to(int by, int fd) {
    char room[CMSG_SPACE(sizeof fd)] = "", byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    expect(sendmsg(by, &message, 0) == 1, "it is sent");
}

static int gets_by(int by) {
    char room[CMSG_SPACE(sizeof(int))], byte;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    expect(recvmsg(by, &message, 0) == 1, "it comes");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

int main(int argc, char **argv) {
    int port = atoi(argv[argc - 1]);
    if (argc == 3) {
        int fd = accept_one(listen_on(port));
        for (size_t got = 0; got < STREAM; got += sizeof bytes) recv_all(fd, bytes, sizeof bytes);
        send_all(fd, bytes, ANSWER);
        return 0;
    }
    const char *how = argv[2];
    int ends[2], status, is_sent = !strcmp(how, "sent"), is_child = is_sent || !strcmp(how, "child");
    if (is_sent && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) die("socketpair");
    pid_t child = is_sent ? fork() : 1;
    if (is_sent && child == 0) {
        connects(gets_by(ends[1]), port);
        _exit(0);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0), other = fd;
    if (is_sent) {
        sends_to(ends[0], fd);
    } else if (!strcmp(how, "duplicate")) {
        other = dup(fd);
    } else if (!strcmp(how, "moved")) {
        other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
        close(fd);
        fd = other;
    } else {
        child = fork();
        if (child == 0 && !is_child) {
            /* Where the parent connects, the child waits until it has. */
            struct pollfd one = {fd, POLLIN, 0};
            while (poll(&one, 1, 10000) == 1 && one.revents & POLLHUP) usleep(1000);
            reads(fd);
            _exit(0);
        }
        if (child == 0) {
            connects(fd, port);
            _exit(0);
        }
    }
    if (is_child) {
        expect(waitpid(child, &status, 0) == child && status == 0, "the child has connected");
        reads(other);
    } else {
        connects(fd, port);
        if (child == 1) reads(other);
        else expect(waitpid(child, &status, 0) == child && status == 0, "the child has read");
    }
    return 0;
}
