/* A connection and more than one process: fork, exec, descriptors passed on; and other ways out of the hooks' sight.
 *   processes server|client CASE PORT
 * In each case the server's end is the one that moves about; the client checks every byte. */
#include "bed.h"
#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

extern char **environ;
static unsigned char data[200000];

/* Both ends run this dialogue: ROUNDS requests of seeded sizes, each answered by its hash. */
static void asks(int fd, uint64_t seed, int rounds) {
    for (int round = 0; round < rounds; round++) {
        uint64_t word = rng_next(&seed), theirs;
        uint32_t size = word % 5 ? 1 + (word >> 9) % 2000 : 1 + (word >> 9) % 60000;
        rng_fill(&seed, data, size);
        send_all(fd, &size, sizeof size);
        send_all(fd, data, size);
        recv_all(fd, &theirs, sizeof theirs);
        expect(theirs == hash_more(HASH_START, data, size), "the answer is the request's hash");
    }
}

static void answers(int fd, int rounds) {
    for (int round = 0; round < rounds; round++) {
        uint32_t size;
        recv_all(fd, &size, sizeof size);
        expect(size <= 60000, "the header is whole");
        recv_all(fd, data, size);
        uint64_t hash = hash_more(HASH_START, data, size);
        send_all(fd, &hash, sizeof hash);
    }
}

static int ended_with(pid_t child) {
    int status;
    expect(waitpid(child, &status, 0) == child, "the child is reaped");
    return status;
}

static pid_t forked(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) die("fork");
    return child;
}

static void sees_the_end(int fd) {
    char byte;
    say("end: %s", outcome(recv(fd, &byte, 1, 0)));
}

/* -- the child goes on, the parent closes -- */
static void child_server(int fd) {
    pid_t child = forked();
    if (child == 0) {
        answers(fd, 200);
        sees_the_end(fd);
        _exit(0);
    }
    close(fd);
    say("child: %d", ended_with(child));
}

static void asks_client(int fd) {
    asks(fd, 1, 200);
    say("asked");
}

/* -- the parent goes on; a child that never touched the connection ends (redis saves like this) -- */
static void parent_server(int fd) {
    for (int i = 0; i < 4; i++) {
        pid_t child = forked();
        if (child == 0) _exit(0);
        answers(fd, 50);
        ended_with(child);
    }
    sees_the_end(fd);
}

/* -- parent and child take turns on one connection -- */
static void turns_server(int fd) {
    int turn[2][2];
    char byte = 0;
    if (pipe(turn[0]) || pipe(turn[1])) die("pipe");
    pid_t child = forked();
    int me = child == 0;
    for (int i = 0; i < 20; i++) {
        if (me || i > 0) expect(read(turn[me][0], &byte, 1) == 1, "the turn comes");
        answers(fd, 5);
        expect(write(turn[!me][1], &byte, 1) == 1, "the turn goes");
    }
    if (child == 0) _exit(0);
    say("child: %d", ended_with(child));
    sees_the_end(fd);
}

/* -- one direction each: the child only writes, the parent only reads. After a dialogue in which the lane comes, on a busy
   machine too: a connection that was forked before stays on TCP for a while -- */
static void split(int fd, uint64_t seed) {
    uint64_t hash = HASH_START;
    for (int i = 0; i < 500; i++) {
        send_all(fd, data, 1000);
        recv_all(fd, data, 1000);
    }
    pid_t child = forked();
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            rng_fill(&seed, data, 50000);
            send_all(fd, data, 50000);
        }
        _exit(0);
    }
    for (int i = 0; i < 100; i++) {
        recv_all(fd, data, 50000);
        hash = hash_more(hash, data, 50000);
    }
    say("child: %d", ended_with(child));
    say("read %016lx", hash);
}

static void split_server(int fd) {
    split(fd, 3);
    shutdown(fd, SHUT_WR);
}

static void split_client(int fd) {
    split(fd, 4);
    sees_the_end(fd);
}

/* -- the end goes to another program: `cat` echoes it, by exec in place, in a child, and without our library -- */
static void becomes_cat(int fd, char **environment) {
    char *const command[] = {"cat", NULL};
    dup2(fd, 0);
    dup2(fd, 1);
    execve("/bin/cat", command, environment);
    _exit(72);
}

static char *bare_environment[] = {"PATH=/usr/bin:/bin", NULL};

static void exec_server(int fd) {
    say("done"); /* what run_case() would say: this process does not come back to it */
    becomes_cat(fd, environ);
}

static void exec_child_server(int fd) {
    pid_t child = forked();
    if (child == 0) becomes_cat(fd, environ);
    close(fd);
    say("cat: %d", ended_with(child));
}

static void exec_foreign_server(int fd) {
    pid_t child = forked();
    if (child == 0) becomes_cat(fd, bare_environment);
    close(fd);
    say("cat: %d", ended_with(child));
}

static void spawn_server(int fd) {
    char *const command[] = {"cat", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    if (posix_spawn(&child, "/bin/cat", &actions, NULL, command, bare_environment)) die("posix_spawn");
    close(fd);
    say("cat: %d", ended_with(child));
}

static void echo_client(int fd) {
    static unsigned char back[sizeof data];
    uint64_t seed = 8, hash = HASH_START;
    for (int round = 0; round < 60; round++) {
        size_t size = 1 + rng_next(&seed) % 30000;
        rng_fill(&seed, data, size);
        send_all(fd, data, size);
        recv_all(fd, back, size);
        expect(!memcmp(data, back, size), "cat echoes");
        hash = hash_more(hash, back, size);
    }
    shutdown(fd, SHUT_WR);
    sees_the_end(fd);
    say("echoed %016lx", hash);
}

/* -- a program is run while the connection is open, and has nothing to do with it -- */
static void system_server(int fd) {
    for (int i = 0; i < 3; i++) {
        say("system: %d", system("true"));
        answers(fd, 50);
    }
    FILE *pipe = popen("echo hello", "r");
    char line[16] = "";
    say("popen: %s", pipe && fgets(line, sizeof line, pipe) ? strtok(line, "\n") : "nothing");
    say("pclose: %d", pclose(pipe));
    answers(fd, 50);
    sees_the_end(fd);
}

/* -- the descriptor goes to another process by SCM_RIGHTS -- */
static void passed_server(int fd) {
    int pair[2];
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
    /* forked before the connection existed would be fairer, but the child closes its copy all the same */
    pid_t child = forked();
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (child == 0) {
        close(fd);
        if (recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) != 1) die("recvmsg");
        int received;
        memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
        answers(received, 100);
        sees_the_end(received);
        _exit(0);
    }
    answers(fd, 100);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    if (sendmsg(pair[0], &message, 0) != 1) die("sendmsg");
    close(fd);
    say("child: %d", ended_with(child));
}

/* -- stdio on the connection: its reads and writes pass no hook -- */
static void stdio_server(int fd) {
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    char line[256];
    for (int i = 0; i < 300; i++) {
        expect(fgets(line, sizeof line, in) != NULL, "a line comes");
        fprintf(out, "%d:%s", i, line);
        fflush(out);
    }
    fclose(out);
    say("end: %s", fgets(line, sizeof line, in) ? line : "end of file");
    fclose(in);
}

static void stdio_client(int fd) {
    char line[256], back[256], wanted[300];
    uint64_t seed = 3;
    for (int i = 0; i < 300; i++) {
        int size = snprintf(line, sizeof line, "%016lx %d\n", rng_next(&seed), i);
        send_all(fd, line, size);
        int whole = snprintf(wanted, sizeof wanted, "%d:%s", i, line);
        recv_all(fd, back, whole);
        expect(!memcmp(wanted, back, whole), "the line comes back numbered");
    }
    sees_the_end(dup(fd) >= 0 && !shutdown(fd, SHUT_WR) ? fd : -1);
}

/* -- calls that reach the kernel past read() and write(): dprintf and syscall(2), a lane under them -- */
static void raw_server(int fd) {
    char line[256];
    for (int i = 0; i < 300; i++) {
        size_t have = 0;
        do expect(syscall(SYS_read, fd, line + have, 1) == 1, "a byte comes");
        while (line[have++] != '\n');
        line[have] = 0;
        char reply[300];
        int whole = snprintf(reply, sizeof reply, "%d:%s", i, line);
        if (i % 2) expect(dprintf(fd, "%s", reply) == whole, "the line is written");
        else send_all(fd, reply, whole);
    }
    sees_the_end(fd);
    say("close: %ld", syscall(SYS_close, fd));
}

/* -- numbers that streams have: what libc writes and reads inside itself is of the same stream as the rest -- */
static void writes_both_ways(int number, FILE *stream) {
    fputs("A\n", stream);
    fflush(stream);
    send_all(number, "B\n", 2);
    fputs("C\n", stream);
    fflush(stream);
    send_all(number, "D\n", 2);
}

static void output_server(int fd) {
    int saved = dup(1);
    fflush(stdout);
    dup2(fd, 1);
    writes_both_ways(1, stdout);
    dup2(saved, 1);
    tell();
    sees_the_end(fd);
}

static void file_server(int fd) {
    FILE *file = fopen("/dev/null", "w");
    expect(file && dup2(fd, fileno(file)) == fileno(file), "another file's number");
    writes_both_ways(fileno(file), file);
    tell();
    sees_the_end(fd);
}

static void input_server(int fd) {
    char line[16] = "";
    dup2(fd, 0);
    tell();
    say("line: %s", fgets(line, sizeof line, stdin) ? strtok(line, "\n") : "nothing");
    tell();
    sees_the_end(fd);
}

static void input_client(int fd) {
    await();
    send_all(fd, "hello\n", 6);
    await(); /* looks at no connection before the line was read */
}

/* -- a stream that becomes a file, at the number of a connection that lives on at another one -- */
static void reopened_server(int fd) {
    char text[16] = "";
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, 500);
    dup2(fd, 0);
    close(fd);
    tell();
    await();
    expect(freopen("/proc/self/comm", "r", stdin) != NULL, "it is reopened");
    say("read: %s %.9s", outcome(read(0, text, 9)), text);
    say("kept: %s %.5s", outcome(recv(kept, text, 5, MSG_WAITALL)), text);
    tell();
    sees_the_end(kept);
}

static void reopened_client(int fd) {
    await(); /* what is on a lane when its reader leaves it comes with the next call here, which there is none of */
    send_all(fd, "hello", 5);
    tell();
    await();
}

/* -- shells that libc starts write to what they inherit -- */
static void shell_server(int fd) {
    char command[64];
    snprintf(command, sizeof command, "echo A >&%d", fd);
    say("system: %d", system(command));
    send_all(fd, "B\n", 2);
    snprintf(command, sizeof command, "echo C >&%d", fd);
    say("pclose: %d", pclose(popen(command, "w")));
    send_all(fd, "D\n", 2);
    tell();
    sees_the_end(fd);
}

static void letters_client(int fd) {
    await();
    recv_all(fd, data, 8);
    for (int i = 0; i < 4; i++) say("%c", data[2 * i]);
}

/* -- what a reader that turns to stdio wants back stands before what splice() moves -- */
enum { SPLICED = 500000, A_PIPE = 4096 };

static void spliced_server(int fd) {
    int small = 4096, ends[2];
    uint64_t seed = 8;
    static unsigned char bytes[SPLICED];
    rng_fill(&seed, bytes, SPLICED);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    send_all(fd, bytes, SPLICED / 2);
    usleep(150000); /* the reader has turned to stdio, and TCP takes little at once */
    if (pipe(ends)) die("pipe");
    for (int at = SPLICED / 2; at < SPLICED;) {
        ssize_t put = write(ends[1], bytes + at, SPLICED - at < A_PIPE ? SPLICED - at : A_PIPE);
        if (put <= 0) die("write");
        at += put;
        for (ssize_t moved; put > 0; put -= moved)
            if ((moved = splice(ends[0], NULL, fd, NULL, put, 0)) <= 0) die("splice");
    }
    close(fd);
}

static void spliced_client(int fd) {
    uint64_t hash = HASH_START, count = 0;
    int small = 16384;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    usleep(80000); /* there is something unread */
    FILE *stream = fdopen(fd, "r");
    usleep(200000);
    for (size_t got; (got = fread(data, 1, sizeof data, stream)) > 0; count += got) hash = hash_more(hash, data, got);
    say("%lu bytes, hash %016lx", (unsigned long)count, (unsigned long)hash);
    fclose(stream);
}

/* -- children by clone(): of a child of a child, each parent closes with bytes unread -- */
static int clones_fd;

static void leaves_it_to(pid_t child) {
    if (child < 0) die("clone");
    close(clones_fd);
    say("child: %d", ended_with(child));
}

static int first_clone(void *seen) {
    pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    expect(*(int *)seen == 7, "the argument comes");
    if (child) {
        leaves_it_to(child);
        return 0;
    }
    uint64_t how[8] = {[4] = SIGCHLD};
    child = syscall(SYS_clone3, how, sizeof how);
    if (child) {
        leaves_it_to(child);
        _exit(0);
    }
    answers(clones_fd, 50);
    sees_the_end(clones_fd);
    _exit(0);
}

static void clones_server(int fd) {
    static char stack[1 << 17] __attribute__((aligned(16)));
    int seven = 7;
    clones_fd = fd;
    await();
    usleep(20000); /* the first request most likely stands there */
    fflush(stdout);
    leaves_it_to(clone(first_clone, stack + sizeof stack, SIGCHLD, &seven));
}

static void clones_client(int fd) {
    tell();
    asks(fd, 5, 50);
    say("asked");
}

static const struct bed_case cases[] = {
    {"child", child_server, asks_client},         {"parent", parent_server, asks_client},
    {"turns", turns_server, asks_client},         {"split", split_server, split_client},
    {"exec", exec_server, echo_client},           {"exec-child", exec_child_server, echo_client},
    {"exec-foreign", exec_foreign_server, echo_client}, {"spawn", spawn_server, echo_client},
    {"system", system_server, asks_client},       {"passed", passed_server, asks_client},
    {"stdio", stdio_server, stdio_client},        {"raw", raw_server, stdio_client},
    {"output", output_server, letters_client},    {"file", file_server, letters_client},
    {"input", input_server, input_client},        {"reopened", reopened_server, reopened_client},
    {"shell", shell_server, letters_client},      {"clones", clones_server, clones_client},
    {"spliced", spliced_server, spliced_client},
    {NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    return run_case(argc, argv, cases);
}
