/* A server whose children are left with its connections, and end with them: what it has of them it gives back.
 *   left server|client CASE PORT
 * CASE is how a child ends: killed, exits, closes. The server says what it has mapped, and what it has open, with one connection before the
 * children, and with one after them when that is no more, or too many connections later. */
#include "bed.h"
#include <dirent.h>
#include <sys/wait.h>

enum { CHILDREN = 12, AFTER = 20 };

static int mapped(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    if (!maps) die("/proc/self/maps");
    while (fgets(line, sizeof line, maps)) count += strstr(line, "/memfd:shunpike-dmb") != NULL;
    fclose(maps);
    return count;
}

static int opened(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    if (!directory) die("/proc/self/fd");
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

/* The child has the connection alone for a while. */
static void leave_to_child(int fd, const char *how) {
    int told[2];
    char byte;
    if (pipe(told)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        close(told[1]);
        expect(read(told[0], &byte, 1) == 0, "the parent has closed it");
        send_all(fd, "?", 1);
        recv_all(fd, &byte, 1);
        if (!strcmp(how, "killed")) kill(getpid(), SIGKILL);
        if (!strcmp(how, "closes")) close(fd);
        _exit(0);
    }
    close(told[0]);
    close(fd);
    close(told[1]);
    waitpid(child, NULL, 0);
}

static void server(int listener, const char *how) {
    int fd = accept_one(listener);
    warm_up_server(fd);
    /* And a set of the library's own, which is made where a wait needs one first. */
    int mapped_before = mapped(), opened_before = opened() + 1;
    close(fd);
    for (int i = 0; i < CHILDREN; i++) {
        warm_up_server(fd = accept_one(listener));
        leave_to_child(fd, how);
    }
    int mapped_after = 0, opened_after = 0;
    for (int i = 0; i < AFTER; i++) {
        warm_up_server(fd = accept_one(listener));
        mapped_after = mapped(), opened_after = opened();
        if (mapped_after <= mapped_before && opened_after <= opened_before) break;
        if (i + 1 < AFTER) close(fd);
    }
    say("%d %d %d %d", mapped_before, mapped_after, opened_before, opened_after);
    await();
    send_all(fd, "!", 1);
}

static void client(int port) {
    char byte = 0;
    while (byte != '!') {
        int fd = connect_to(port);
        warm_up_client(fd);
        while (recv_upto(fd, &byte, 1) == 1 && byte == '?') send_all(fd, "c", 1);
        close(fd);
    }
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    sync_open(is_server);
    if (is_server)
        server(listen_on(port), argv[2]);
    else
        client(port);
    return 0;
}
