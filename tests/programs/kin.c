/* A connection whose process has had children: whoever they were, the connection is its own again when they are gone.
 *   kin server|client CASE PORT
 * The server forks, says "forked", and answers; the client asks until it is told to stop. */
#include "bed.h"
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static pid_t child;
static int connection;
static char *const sleeper[] = {"sleep", "1000", NULL};

static void child_execs(void) {
    if ((child = fork()) == 0) {
        execvp("sleep", sleeper);
        _exit(70);
    }
}

static void child_tries_to_exec(void) {
    if ((child = fork()) == 0) {
        execv("/no/such/program", sleeper);
        pause();
    }
}

static void child_waits(void) {
    if ((child = fork()) == 0) pause();
}

static void child_is_killed(void) {
    child_waits();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    child = 0;
}

static void child_exits(void) {
    if ((child = fork()) == 0) _exit(0);
    waitpid(child, NULL, 0);
    child = 0;
}

/* Each has a child of its own before it goes. */
static void generations_end(void) {
    pid_t server = getpid();
    for (int depth = 0; depth < 10; depth++)
        if ((child = fork()) != 0) break;
    if (child > 0) waitpid(child, NULL, 0);
    if (server != getpid()) kill(getpid(), SIGKILL);
    child = 0;
}

static void many_are_killed(void) {
    for (int i = 0; i < 100; i++) child_is_killed();
}

static void child_is_vforked(void) {
    if ((child = vfork()) == 0) {
        execvp("sleep", sleeper);
        _exit(70);
    }
}

static void child_is_spawned(void) {
    if (posix_spawnp(&child, "sleep", NULL, NULL, sleeper, environ)) die("posix_spawnp");
}

static void shell_runs(void) {
    if (system("true")) die("system");
}

/* Parent and child swap: the server goes on in the child, and its parent is killed. */
static void child_stays(void) {
    pid_t parent = getpid();
    int gone[2];
    char byte;
    if (pipe(gone)) die("pipe");
    if (fork() != 0) {
        close(gone[0]);
        pause();
    }
    close(gone[1]);
    kill(parent, SIGKILL);
    expect(read(gone[0], &byte, 1) == 0, "the parent is gone");
}

/* A child that closes its copy of the connection when the parent has done `what`. */
static void child_closes_after(void (*what)(void)) {
    int told[2];
    char byte;
    if (pipe(told)) die("pipe");
    if ((child = fork()) == 0) {
        close(told[1]);
        expect(read(told[0], &byte, 1) == 0, "the parent says when");
        close(connection);
        _exit(0);
    }
    close(told[0]);
    what();
    close(told[1]);
    waitpid(child, NULL, 0);
    child = 0;
}

/* All descriptors but the program's own few, past the hooks. */
static void close_the_rest(void) {
    expect(unseen_call(SYS_close_range, 100, ~0u, 0, 0) == 0, "close_range works");
}

/* Another descriptor of each open file, for a moment. */
static void look_at_each(void) {
    char path[64];
    for (int fd = 0; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        long again = unseen_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
        if (again >= 0) unseen_call(SYS_close, again, 0, 0, 0);
    }
}

static void parent_sheds(void) { child_closes_after(close_the_rest); }
static void parent_looks(void) { child_closes_after(look_at_each); }

static const struct {
    const char *name;
    void (*act)(void);
} acts[] = {
    {"execs", child_execs},          {"tries", child_tries_to_exec},  {"waits", child_waits},
    {"killed", child_is_killed},     {"exits", child_exits},          {"generations", generations_end},
    {"many", many_are_killed},       {"vfork", child_is_vforked},     {"spawn", child_is_spawned},
    {"system", shell_runs},          {"stays", child_stays},
    {"sheds", parent_sheds},         {"looks", parent_looks},
};

static void server(int fd, const char *name) {
    char message[1024];
    fcntl(connection = fd, F_SETFD, FD_CLOEXEC);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (!strcmp(acts[i].name, name)) acts[i].act();
    say("forked");
    while (recv_upto(fd, message, sizeof message) == sizeof message) send_all(fd, message, sizeof message);
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    say("served");
}

static void client(int fd) {
    char message[1024] = {0};
    struct pollfd told = {wait_fd, POLLIN, 0};
    while (poll(&told, 1, 0) == 0) {
        send_all(fd, message, sizeof message);
        recv_all(fd, message, sizeof message);
        usleep(200); /* there is time for everybody */
    }
    say("asked");
}

int main(int argc, char **argv) {
    expect(argc == 4, "usage: server|client CASE PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]);
    sync_open(is_server);
    if (is_server) {
        int listener = listen_on(port), fd = accept_one(listener);
        close(listener);
        warm_up_server(fd);
        server(fd, argv[2]);
    } else {
        int fd = connect_to(port);
        warm_up_client(fd);
        client(fd);
    }
    return 0;
}
