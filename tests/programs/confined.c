/* A program under confinement: filters of system calls, limits, no /proc.
 *   confined wrap HOW PROGRAM [ARGUMENT...]   confines itself, then executes the program
 *   confined server|client WHEN PORT          a dialogue; WHEN: plain, strict or filter (once it is warm)
 * HOW: no-CALL (refused with EPERM), system-service, unix (no such sockets), nofile, memory, proc, plain */
#include "bed.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const struct {
    const char *name;
    unsigned number;
} calls[] = {
    {"memfd_create", SYS_memfd_create}, {"eventfd2", SYS_eventfd2},       {"membarrier", SYS_membarrier},
    {"sendmsg", SYS_sendmsg},           {"recvmsg", SYS_recvmsg},         {"getsockopt", SYS_getsockopt},
    {"epoll_create1", SYS_epoll_create1}, {"epoll_ctl", SYS_epoll_ctl},   {"ioctl", SYS_ioctl},
    {"sched_getaffinity", SYS_sched_getaffinity}, {"gettid", SYS_gettid},
    {"rt_tgsigqueueinfo", SYS_rt_tgsigqueueinfo}, {"sched_yield", SYS_sched_yield}, {"preadv2", SYS_preadv2}, {"uname", SYS_uname},
    {"io_uring_setup", SYS_io_uring_setup},
};

/* What systemd's @system-service leaves out, as far as it could concern a library: all of these are refused. */
static const unsigned left_out[] = {
    SYS_ptrace, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_io_uring_setup, SYS_pidfd_getfd, SYS_mount, SYS_unshare,
    SYS_setns, SYS_add_key, SYS_keyctl, SYS_kcmp, SYS_process_madvise, SYS_init_module, SYS_reboot, SYS_swapon,
};

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define GIVE(what) BPF_STMT(BPF_RET | BPF_K, what)
#define UNLESS(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1)

static void install(struct sock_filter *filter, unsigned short length) {
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
}

static void refuse(const unsigned *numbers, size_t count) {
    struct sock_filter filter[80] = {LOAD(nr)};
    unsigned short length = 1;
    for (size_t i = 0; i < count; i++) {
        filter[length++] = (struct sock_filter)UNLESS(numbers[i]);
        filter[length++] = (struct sock_filter)GIVE(SECCOMP_RET_ERRNO | EPERM);
    }
    filter[length++] = (struct sock_filter)GIVE(SECCOMP_RET_ALLOW);
    install(filter, length);
}

/* RestrictAddressFamilies=AF_INET AF_INET6 */
static void refuse_unix_sockets(void) {
    struct sock_filter filter[] = {
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3), LOAD(args[0]), UNLESS(AF_UNIX),
        GIVE(SECCOMP_RET_ERRNO | EAFNOSUPPORT), GIVE(SECCOMP_RET_ALLOW),
    };
    install(filter, sizeof filter / sizeof *filter);
}

/* Death at any call but those of the dialogue. */
static void allow_only_dialogue(void) {
    static const unsigned numbers[] = {SYS_read, SYS_write, SYS_close, SYS_exit_group, SYS_poll, SYS_rt_sigreturn};
    struct sock_filter filter[40] = {LOAD(nr)};
    unsigned short length = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        filter[length++] = (struct sock_filter)UNLESS(numbers[i]);
        filter[length++] = (struct sock_filter)GIVE(SECCOMP_RET_ALLOW);
    }
    filter[length++] = (struct sock_filter)GIVE(SECCOMP_RET_KILL_PROCESS);
    install(filter, length);
}

static void limit(int what, rlim_t most) {
    struct rlimit both = {most, most};
    if (setrlimit(what, &both)) die("setrlimit");
}

static void confine(const char *how) {
    unsigned number = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strncmp(how, "no-", 3) && !strcmp(how + 3, calls[i].name)) number = calls[i].number;
    if (!strncmp(how, "no-", 3)) {
        expect(number != 0, "the call is known");
        refuse(&number, 1);
    } else if (!strcmp(how, "system-service")) {
        refuse(left_out, sizeof left_out / sizeof *left_out);
    } else if (!strcmp(how, "unix")) {
        refuse_unix_sockets();
    } else if (!strcmp(how, "nofile")) {
        limit(RLIMIT_NOFILE, 8);
    } else if (!strcmp(how, "memory")) {
        limit(RLIMIT_AS, 24 << 20);
    } else if (!strcmp(how, "proc")) {
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("unshare");
        if (mount("none", "/proc", "tmpfs", 0, NULL)) die("mount");
    } else {
        expect(!strcmp(how, "plain"), "the confinement is known");
    }
}

/* One byte at a time would show what is lost; 300 rounds of what does not fit into one segment show the rest. */
static void dialogue(int fd, int is_server, int rounds) {
    static unsigned char message[5000];
    for (int round = 0; round < rounds; round++) {
        for (int turn = 0; turn < 2; turn++) {
            if (turn == is_server) {
                memset(message, round, sizeof message);
                for (size_t sent = 0; sent < sizeof message;) {
                    ssize_t count = write(fd, message + sent, sizeof message - sent);
                    if (count <= 0) _exit(72);
                    sent += count;
                }
            } else {
                for (size_t have = 0; have < sizeof message;) {
                    struct pollfd readable = {fd, POLLIN, 0};
                    if (round % 2 && rounds != 299 && poll(&readable, 1, -1) != 1) _exit(73);
                    ssize_t count = read(fd, message + have, sizeof message - have);
                    if (count <= 0) _exit(74);
                    have += count;
                }
                if (message[0] != (unsigned char)round || message[sizeof message - 1] != (unsigned char)round) _exit(75);
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc > 3 && !strcmp(argv[1], "wrap")) {
        confine(argv[2]);
        execvp(argv[3], argv + 3);
        die("execvp");
    }
    expect(argc == 4, "usage: wrap HOW PROGRAM... | server|client WHEN PORT");
    int is_server = !strcmp(argv[1], "server"), port = atoi(argv[3]), fd;
    if (is_server) {
        int listener = listen_on(port);
        fd = accept_one(listener);
        close(listener);
        warm_up_server(fd);
    } else {
        fd = connect_to(port);
        warm_up_client(fd);
    }
    if (!strcmp(argv[2], "filter")) {
        allow_only_dialogue();
        dialogue(fd, is_server, 300);
    } else if (!strcmp(argv[2], "strict")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) die("prctl");
        dialogue(fd, is_server, 299);
    } else {
        dialogue(fd, is_server, 300);
    }
    if (write(1, "done\n", 5) != 5) _exit(76);
    if (strcmp(argv[2], "strict")) _exit(0);
    syscall(SYS_exit, 0);
}
