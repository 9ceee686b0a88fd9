/* What musl's calls have otherwise than the kernel's and glibc's: lengths of 32 bits, behind which anything may stand, a request of ioctl of
 * 32 bits, and select's time, which stays as it is. Compiled with musl-gcc alone.
 *   musl server PORT
 *   musl client PORT */
#include "bed.h"
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/wait.h>

#define ROUNDS 400

static char data[1000];

/* A message whose fields are set one by one, as programs set them on the stack. */
static struct msghdr message(struct iovec *parts, int count) {
    struct msghdr message;
    memset(&message, 0xff, sizeof message);
    message.msg_name = NULL;
    message.msg_namelen = 0;
    message.msg_iov = parts;
    message.msg_iovlen = count;
    message.msg_control = NULL;
    message.msg_controllen = 0;
    message.msg_flags = 0;
    return message;
}

static void send_message(int fd, int size) {
    struct iovec parts[2] = {{data, 1}, {data + 1, size - 1}};
    struct msghdr out = message(parts, 2);
    expect(sendmsg(fd, &out, MSG_NOSIGNAL) == size, "sendmsg");
}

static void receive_message(int fd, int size) {
    for (int got = 0; got < size;) {
        struct iovec parts[2] = {{data + got, 1}, {data + got + 1, size - got - 1}};
        struct msghdr in = message(parts, 2);
        int n = recvmsg(fd, &in, 0);
        expect(n > 0, "recvmsg");
        expect(in.msg_iovlen == 2 && in.msg_controllen == 0 && in.msg_flags == 0, "recvmsg leaves lengths as they are");
        got += n;
    }
}

/* A child gets the connection by a message, speaks a last time, and hears the end. */
static void pass_on(int fd) {
    int pair[2], status;
    char byte = 'x', control[CMSG_SPACE(sizeof fd)];
    expect(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    memset(control, 0xff, sizeof control);
    struct iovec one = {&byte, 1};
    struct msghdr passing = message(&one, 1);
    passing.msg_control = control;
    passing.msg_controllen = sizeof control;
    struct cmsghdr *header = CMSG_FIRSTHDR(&passing);
    header->cmsg_len = CMSG_LEN(sizeof fd);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    expect(sendmsg(pair[0], &passing, 0) == 1, "sendmsg of a descriptor");
    close(fd);
    pid_t child = fork();
    if (!child) {
        int passed;
        passing.msg_controllen = sizeof control;
        expect(recvmsg(pair[1], &passing, 0) == 1, "recvmsg of a descriptor");
        memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&passing)), sizeof passed);
        /* Past the hooks: what reads it may be any program. */
        for (long got = 0, n; got < 10; got += n)
            expect((n = unseen_call(SYS_read, passed, (long)data, 10 - got, 0)) > 0, "read");
        expect(unseen_call(SYS_write, passed, (long)data, 10, 0) == 10, "write");
        _exit(0);
    }
    expect(waitpid(child, &status, 0) == child && !status, "the child ends well");
}

static void server(int fd) {
    for (int i = 0; i < ROUNDS; i++) receive_message(fd, 100), send_message(fd, 100);
    struct timeval time = {0, 20000};
    for (int i = 0; i < 2; i++) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        int told = select(fd + 1, &set, NULL, NULL, &time);
        printf("select: %d, %ld s %ld us\n", told, (long)time.tv_sec, (long)time.tv_usec);
    }
    send_message(fd, 1);
    int unread = -1;
    struct pollfd poller = {fd, POLLIN, 0};
    expect(poll(&poller, 1, -1) == 1, "poll");
    int (*wide)(int, unsigned long, ...) = (int (*)(int, unsigned long, ...))(void *)ioctl;
    expect(!wide(fd, 0xffffffff00000000 | FIONREAD, &unread), "ioctl");
    printf("unread: %d\n", unread);
    receive_message(fd, 77);
    send_message(fd, 1);
    pass_on(fd);
    puts("done");
}

static void client(int fd) {
    for (int i = 0; i < ROUNDS; i++) send_message(fd, 100), receive_message(fd, 100);
    receive_message(fd, 1);
    send_message(fd, 77);
    receive_message(fd, 1);
    send_message(fd, 10);
    receive_message(fd, 10);
    expect(recv(fd, data, 1, 0) == 0, "the end");
    puts("done");
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (strcmp(argv[1], "server")) {
        expect(!connect(fd, (struct sockaddr *)&to, sizeof to), "connect");
        client(fd);
        return 0;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    expect(!bind(fd, (struct sockaddr *)&to, sizeof to) && !listen(fd, 1), "listen");
    server(accept(fd, NULL, NULL));
    return 0;
}
