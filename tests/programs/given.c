/* A server gives its connection to another program, or takes it to another number, in ways that are told of late or not at all.
 *   given CASE       says ok; both ends are processes of its own
 *   given respond FD, given echo FD [linger]      what is started
 * spawn vfork shell popen   with a request that it has not read, closes its own descriptor, and the program answers 3 MB and ends
 * prepared kept again       by file actions that were made before the connection was; "kept": its own stays open; "again": another one
 *                           had its number then
 * unmarked                  a child of vfork() takes close-on-exec off a duplicate that had it from the beginning
 * cloned                    a child of clone(CLONE_VM | CLONE_VFORK) closes its own descriptor: the parent goes on
 * threaded                  the program's first thread ends, and another one answers later
 * moved                     thirty connections are moved to another number as soon as they are accepted
 */
#include "bed.h"
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

enum { ROUNDS = 100, REQUEST = 1000, ANSWER = 3000000, SOME = 300, MOVED = 30 };

static const char *which, *self;

static void wanted(int is, const char *what) {
    if (!is) {
        die(what);
    }
}

static void put(int fd, size_t n, unsigned char first) {
    unsigned char bytes[50000];
    for (size_t at = 0, more; at < n; at += more) {
        more = n - at < sizeof bytes ? n - at : sizeof bytes;
        for (size_t i = 0; i < more; i++) {
            bytes[i] = (unsigned char)(first + (at + i) / 7);
        }
        ssize_t sent = send(fd, bytes, more, MSG_NOSIGNAL);
        wanted(sent > 0, "send");
        more = (size_t)sent;
    }
}

/* "pauses": as of one who computes between two reads. */
static void get(int fd, size_t n, unsigned char first, int pauses) {
    unsigned char bytes[50000];
    for (size_t at = 0, more; at < n; at += more) {
        ssize_t got = recv(fd, bytes, n - at < sizeof bytes ? n - at : sizeof bytes, 0);
        wanted(got > 0, "recv");
        for (ssize_t i = 0; i < got; i++) {
            wanted(bytes[i] == (unsigned char)(first + (at + (size_t)i) / 7), "a byte");
        }
        more = (size_t)got;
        if (pauses) {
            usleep(500);
        }
    }
}

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void warm(int fd, int begins) {
    for (int i = 0; i < ROUNDS; i++) {
        if (begins) {
            put(fd, 100, 1);
        }
        get(fd, 100, 1, 0);
        if (!begins) {
            put(fd, 100, 1);
        }
    }
}

static int quick(int fd) {
    int on = 1;
    wanted(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0, "a connection");
    return fd;
}

static int is(const char *name) { return strcmp(which, name) == 0; }

static void ended(pid_t child) {
    int status = -1;
    wanted(waitpid(child, &status, 0) == child && status == 0, "what was started");
}

static pid_t spawn(const char *what, int fd, const posix_spawn_file_actions_t *actions) {
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    char *argv[] = {(char *)self, (char *)what, number, NULL};
    pid_t child;
    wanted(posix_spawn(&child, self, actions, NULL, argv, environ) == 0, "posix_spawn");
    return child;
}

static void give_with_a_request(int fd) {
    char command[4200];
    fcntl(fd, F_SETFD, 0);
    snprintf(command, sizeof command, "%s respond %d%s", self, fd, is("shell") ? " &" : "");
    if (is("shell")) {
        wanted(system(command) == 0, "system");
        close(fd);
        usleep(1000000);
    } else if (is("popen")) {
        FILE *of = popen(command, "r");
        wanted(of != NULL, "popen");
        close(fd);
        wanted(pclose(of) == 0, "what popen started");
    } else if (is("spawn")) {
        pid_t child = spawn("respond", fd, NULL);
        close(fd);
        ended(child);
    } else {
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        pid_t child = vfork();
        if (child == 0) {
            execl(self, self, "respond", number, (char *)NULL);
            _exit(1);
        }
        close(fd);
        ended(child);
    }
}

static int cloned_fd;

static int cloned(void *unused UNUSED) {
    close(cloned_fd);
    _exit(0);
}

static void serve(int listener) {
    if (is("moved")) {
        for (int i = 0; i < MOVED; i++) {
            int first = quick(accept4(listener, NULL, NULL, SOCK_CLOEXEC)), fd = 50 + i;
            wanted(dup2(first, fd) == fd, "dup2");
            close(first);
            get(fd, 100, 1, 0);
            put(fd, 100, 2);
            get(fd, 100, 3, 0);
            close(fd);
        }
        return;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    int before = is("again") ? quick(accept4(listener, NULL, NULL, SOCK_CLOEXEC)) : -1;
    if (before >= 0) {
        warm(before, 0);
        wanted(dup2(before, 20) == 20, "dup2");
        close(before);
    }
    posix_spawn_file_actions_adddup2(&actions, 20, 30);
    if (before >= 0) {
        close(20);
    }
    int fd = quick(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    warm(fd, 0);
    if (is("prepared") || is("kept") || is("again")) {
        int at = fcntl(fd, F_DUPFD_CLOEXEC, 20);
        close(fd);
        usleep(30000);
        pid_t child = spawn("echo", 30, &actions);
        if (!is("kept")) {
            close(at);
        }
        wanted(at == 20, "number 20");
        ended(child);
        return;
    }
    usleep(30000);
    if (is("unmarked")) {
        char number[16];
        pid_t child = vfork();
        if (child == 0) {
            int other = fcntl(fd, F_DUPFD_CLOEXEC, 30);
            fcntl(other, F_SETFD, 0);
            snprintf(number, sizeof number, "%d", other);
            execl(self, self, "echo", number, (char *)NULL);
            _exit(1);
        }
        close(fd);
        ended(child);
    } else if (is("cloned")) {
        static char stack[65536] __attribute__((aligned(16)));
        cloned_fd = fd;
        ended(clone(cloned, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL));
        get(fd, REQUEST, 3, 0);
        put(fd, 10, 4);
    } else if (is("threaded")) {
        fcntl(fd, F_SETFD, 0);
        pid_t child = spawn("later", fd, NULL);
        for (int i = 0; i < 200; i++) {
            get(fd, 100, 3, 0);
            put(fd, 100, 4);
            usleep(1000);
        }
        ended(child);
    } else {
        give_with_a_request(fd);
    }
}

static void ask(struct sockaddr_in to) {
    char byte;
    for (int i = 0; is("moved") && i < MOVED; i++) {
        int fd = quick(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        wanted(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
        double began = milliseconds();
        put(fd, 100, 1);
        get(fd, 100, 2, 0);
        wanted(milliseconds() - began < 500, "in time");
        put(fd, 100, 3);
        wanted(recv(fd, &byte, 1, 0) == 0, "the end");
        close(fd);
    }
    if (is("moved")) {
        return;
    }
    if (is("again")) {
        int fd = quick(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        wanted(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
        warm(fd, 1);
        wanted(recv(fd, &byte, 1, 0) == 0, "the end of the one before");
        close(fd);
    }
    int fd = quick(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    wanted(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect");
    warm(fd, 1);
    if (is("prepared") || is("kept") || is("again") || is("unmarked")) {
        for (int i = 0; i < 50; i++) {
            put(fd, SOME, 5);
            double began = milliseconds();
            get(fd, SOME, 5, 0);
            wanted(milliseconds() - began < 90, "in time");
        }
        shutdown(fd, SHUT_WR);
    } else if (is("cloned")) {
        put(fd, REQUEST, 3);
        get(fd, 10, 4, 0);
    } else if (is("threaded")) {
        for (int i = 0; i < 200; i++) {
            put(fd, 100, 3);
            get(fd, 100, 4, 0);
        }
        usleep(500000);
        put(fd, 100, 5);
        double began = milliseconds();
        get(fd, 100, 5, 0);
        wanted(milliseconds() - began < 90, "in time");
    } else {
        put(fd, REQUEST, 3);
        usleep(60000);
        get(fd, ANSWER, 4, 1);
    }
    wanted(recv(fd, &byte, 1, 0) == 0, "the end");
}

static void *later(void *fd) {
    usleep(400000);
    get(*(int *)fd, 100, 5, 0);
    put(*(int *)fd, 100, 5);
    _exit(0);
}

int main(int argc, char **argv) {
    static int fd;
    which = argv[1];
    self = realpath("/proc/self/exe", NULL);
    fd = argc > 2 ? atoi(argv[2]) : -1;
    if (is("respond")) {
        get(fd, REQUEST, 3, 0);
        put(fd, ANSWER, 4);
        return 0;
    }
    if (is("echo")) {
        char bytes[SOME];
        for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;) {
            wanted(send(fd, bytes, (size_t)got, MSG_NOSIGNAL) == got, "send");
        }
        return 0;
    }
    if (is("later")) {
        pthread_t thread;
        wanted(pthread_create(&thread, NULL, later, &fd) == 0, "a thread");
        pthread_exit(NULL);
    }
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int told[2];
    wanted(pipe2(told, O_CLOEXEC) == 0, "a pipe");
    pid_t server = fork();
    if (server == 0) {
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        wanted(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 64) == 0, "to listen");
        getsockname(listener, (struct sockaddr *)&at, &len);
        wanted(write(told[1], &at, sizeof at) == sizeof at, "to say where");
        serve(listener);
        return 0;
    }
    wanted(read(told[0], &at, sizeof at) == sizeof at, "to hear where");
    ask(at);
    ended(server);
    printf("ok\n");
    return 0;
}
