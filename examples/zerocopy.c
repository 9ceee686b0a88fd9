/* Sends MEGABYTES to HOST PORT with MSG_ZEROCOPY, as long as that saves a copy.
 *
 *     cc -O2 -o zerocopy-client zerocopy.c
 *     ./zerocopy-client 192.0.2.1 9000 1024
 *
 * The same in Rust: src/main.rs. When it pays: docs/zerocopy.md. */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h> /* errqueue.h needs it */
#include <linux/errqueue.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BUFFERS 8
#define SIZE (256 * 1024)
#define ENOUGH 16 /* copied calls in a row after which it asks no more */

static char buffers[BUFFERS][SIZE];
static uint32_t asked, told; /* calls with a notice to come, calls whose notice has come */
static unsigned long copied, copied_in_a_row;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(host, port, &hints, &found);
    if (error) fprintf(stderr, "%s: %s\n", host, gai_strerror(error)), exit(1);
    for (struct addrinfo *one = found; one; one = one->ai_next) {
        int fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (fd >= 0 && !connect(fd, one->ai_addr, one->ai_addrlen)) return freeaddrinfo(found), fd;
        if (fd >= 0) close(fd);
    }
    die("connect");
    return -1;
}

/* Reads the notices that are there. Each tells of a range of calls, counted from 0. */
static void read_notices(int fd) {
    for (;;) {
        union { char bytes[256]; struct cmsghdr align; } control;
        struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &message, MSG_ERRQUEUE) < 0) {
            if (errno == EAGAIN) return;
            die("recvmsg");
        }
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
        if (!cmsg || message.msg_flags & MSG_CTRUNC) die("a notice that is cut off");
        struct sock_extended_err *notice = (void *)CMSG_DATA(cmsg);
        if (notice->ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        uint32_t calls = notice->ee_data - notice->ee_info + 1;
        told += calls;
        if (notice->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) copied += calls, copied_in_a_row += calls;
        else copied_in_a_row = 0;
    }
}

/* Waits until at most `left` calls have no notice yet. An unread notice is POLLERR, which need not be asked for. */
static void await_notices(int fd, uint32_t left) {
    while (read_notices(fd), asked - told > left) {
        struct pollfd one = {.fd = fd};
        if (poll(&one, 1, -1) < 0 && errno != EINTR) die("poll");
        if (one.revents & POLLHUP) die("the other end is gone");
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: %s HOST PORT MEGABYTES\n", argv[0]), 2;
    int fd = connect_to(argv[1], argv[2]), on = 1;
    /* Not every kernel and socket has it; the flag without the option would be ignored. */
    int flag = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) ? 0 : MSG_ZEROCOPY;
    uint64_t left = strtoull(argv[3], NULL, 10) << 20, sent = 0;
    for (unsigned turn = 0; left; turn = (turn + 1) % BUFFERS) {
        /* The kernel may still read from the buffer until its notice has come. */
        await_notices(fd, BUFFERS - 1);
        memset(buffers[turn], (int)(sent >> 18), SIZE);
        size_t size = left < SIZE ? left : SIZE;
        for (size_t at = 0; at < size;) {
            ssize_t n = send(fd, buffers[turn] + at, size - at, flag | MSG_NOSIGNAL);
            if (n < 0 && errno == ENOBUFS && flag) {
                flag = 0; /* more than may be locked: this one is copied */
                continue;
            }
            if (n < 0 && errno != EINTR) die("send");
            if (n <= 0) continue;
            asked += flag != 0;
            at += n, sent += n, left -= n;
            /* A call that took a part is counted, too: one notice for each. */
            if (at < size) await_notices(fd, BUFFERS - 1);
        }
        if (flag && copied_in_a_row >= ENOUGH) {
            printf("the last %lu calls were copied: no more of them\n", copied_in_a_row);
            flag = 0;
        }
    }
    await_notices(fd, 0);
    printf("%lu bytes sent, %u calls told of, %lu of them copied\n", (unsigned long)sent, told, copied);
    close(fd);
    return 0;
}
