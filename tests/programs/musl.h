/* What the programs use of glibc and musl does not have; musl-gcc includes it before each of them (harness.py). */
#ifndef MUSL_H
#define MUSL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RWF_NOWAIT 8
#define HERE static inline __attribute__((unused))

HERE const char *strerrorname_np(int error) {
    switch (error) {
#define NAME(name) case name: return #name
        NAME(EAGAIN); NAME(EBADF); NAME(ECONNREFUSED); NAME(ECONNRESET); NAME(EDESTADDRREQ); NAME(EEXIST); NAME(EFAULT);
        NAME(EINPROGRESS); NAME(EINTR); NAME(EINVAL); NAME(EISCONN); NAME(ELOOP); NAME(EMFILE); NAME(EMSGSIZE); NAME(ENOENT);
        NAME(ENOMEM); NAME(ENOPROTOOPT); NAME(ENOSYS); NAME(ENOTCONN); NAME(ENOTSOCK); NAME(ENOTTY); NAME(EOPNOTSUPP);
        NAME(EPERM); NAME(EPIPE); NAME(ESPIPE); NAME(ETIMEDOUT);
#undef NAME
    }
    return strerror(error);
}

HERE int epoll_pwait2(int set, struct epoll_event *events, int room, const struct timespec *time, const sigset_t *mask) {
    return syscall(SYS_epoll_pwait2, set, events, room, time, mask, 8);
}

/* Without flags, at the end of a stream, these are readv and writev. */
HERE ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t at, int flags) {
    return at == -1 && !flags ? readv(fd, iov, count) : syscall(SYS_preadv2, fd, iov, count, at, 0, flags);
}

HERE ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t at, int flags) {
    return at == -1 && !flags ? writev(fd, iov, count) : syscall(SYS_pwritev2, fd, iov, count, at, 0, flags);
}
#endif
