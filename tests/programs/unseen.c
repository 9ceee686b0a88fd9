/* A connection that is put into an epoll set by a system call that no hook sees, as io_uring does it: what the program
 * awaits from the kernel must come by the kernel.
 *   unseen server|client PORT */
#include "bed.h"
#include <sys/epoll.h>

int main(int argc, char **argv) {
    expect(argc == 3, "usage: server|client PORT");
    int is_server = !strcmp(argv[1], "server");
    sync_open(is_server);
    if (is_server) {
        int fd = accept_one(listen_on(atoi(argv[2])));
        warm_up_server(fd);
        await();
        send_all(fd, "!", 1);
        await();
    } else {
        int fd = connect_to(atoi(argv[2])), set = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {EPOLLIN, {.u64 = 7}};
        expect(unseen_call(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, (long)&event) == 0, "the kernel takes the registration");
        warm_up_client(fd);
        tell();
        int count = epoll_wait(set, &event, 1, 10000);
        say("woken: %d %lu", count, event.data.u64);
        tell();
    }
    return 0;
}
