/* select(2) by its number, with times that cannot be written, or read. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <netinet/in.h>
#include <unistd.h>

static const struct timeval never_written = {1, 0};

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    if (bind(listener, (void *)&at, size) || listen(listener, 1) || getsockname(listener, (void *)&at, &size)) return 1;
    if (connect(fd, (void *)&at, size)) return 1;
    fd_set one;
    FD_ZERO(&one);
    FD_SET(fd, &one);
    printf("read only: %ld\n", syscall(SYS_select, fd + 1, NULL, &one, NULL, &never_written));
    FD_ZERO(&one);
    FD_SET(fd, &one);
    long told = syscall(SYS_select, fd + 1, NULL, &one, NULL, (void *)16);
    printf("bad: %ld, %s\n", told, strerror(errno));
    return 0;
}
