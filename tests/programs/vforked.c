/* A vfork child closes all but the connection and executes, as subprocess does with pass_fds; its parent goes on waiting in its set.
 *   vforked server|client PORT */
#include "bed.h"
#include <sys/epoll.h>
#include <sys/wait.h>

static void server(int port) {
    int fd = accept_one(listen_on(port)), set = epoll_create1(EPOLL_CLOEXEC);
    char byte, *const sleeper[] = {"sleep", "3", NULL}, *const none[] = {NULL};
    struct epoll_event on = {EPOLLIN, {.u32 = 0}}, event;
    warm_up_server(fd);
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &on)) die("EPOLL_CTL_ADD");
    expect(epoll_wait(set, &event, 1, 100) == 0, "nothing yet");
    pid_t child = vfork();
    if (child == 0) {
        fcntl(fd, F_SETFD, 0);
        if (fd > 3) close_range(3, fd - 1, 0);
        close_range(fd + 1, ~0U, 0);
        execve("/bin/sleep", sleeper, none);
        _exit(72);
    }
    send_all(fd, "a", 1);
    say("%s", epoll_wait(set, &event, 1, 2500) == 1 ? "told" : "not told");
    recv_all(fd, &byte, 1);
    send_all(fd, &byte, 1);
    expect(waitpid(child, NULL, 0) == child, "the child ends");
}

static void client(int port) {
    int fd = connect_to(port);
    char byte;
    warm_up_client(fd);
    recv_all(fd, &byte, 1);
    /* The server sleeps in its set by then. */
    usleep(300000);
    send_all(fd, &byte, 1);
    recv_all(fd, &byte, 1);
}

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    (strcmp(argv[1], "server") ? client : server)(atoi(argv[2]));
    return 0;
}
