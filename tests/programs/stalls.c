/* Ping-pong of 50 bytes on short connections, one after the other, without TCP_NODELAY: how long each exchange takes, lanes that open
 * and close on the way included.
 *   stalls server PORT CONNS HOW          HOW: stay; server or client: that end hands each connection over in the middle
 *   stalls client PORT CONNS ROUNDS HOW   says how many exchanges there were, how many took more than 30 ms, and the times in microseconds
 * What an exchange waits for a CPU is no part of its time: the client's, and that of the processes that BED_OTHERS names. */
#include "bed.h"

#define SIZE 50
#define SLOW_US 30000 /* less than the kernel's shortest delay of an ACK, 40 ms */

static int64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* Connections of the test-bed have TCP_NODELAY. */
static void without_nodelay(int fd) {
    int off = 0;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &off, sizeof off)) die("TCP_NODELAY");
}

/* Another process could have the descriptor now: from here on the connection is on TCP. */
static void hand_over(int fd) {
    static int ends[2] = {-1, -1};
    char byte = '!', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (ends[0] < 0 && socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends)) die("socketpair");
    rights->cmsg_level = SOL_SOCKET, rights->cmsg_type = SCM_RIGHTS, rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    expect(sendmsg(ends[0], &message, 0) == 1, "the descriptor is sent");
    expect(read(ends[1], &byte, 1) == 1, "and thrown away");
}

/* How long these have wanted a CPU that others had, in microseconds. */
static int64_t kept_us(void) {
    static int files[8], count;
    int64_t sum = 0;
    if (!count) {
        char path[64], *others = getenv("BED_OTHERS");
        files[count++] = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
        for (char *pid = others ? strtok(others, " ") : NULL; pid && count < 8; pid = strtok(NULL, " ")) {
            snprintf(path, sizeof path, "/proc/%s/schedstat", pid);
            files[count++] = open(path, O_RDONLY | O_CLOEXEC);
        }
    }
    for (int i = 0; i < count; i++) {
        char text[64] = "";
        if (pread(files[i], text, sizeof text - 1, 0) <= 0) die("schedstat");
        sum += atoll(strchr(text, ' ')) / 1000;
    }
    return sum;
}

static int by_time(const void *a, const void *b) {
    const int64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

int main(int argc, char **argv) {
    expect((argc == 5 && !strcmp(argv[1], "server")) || argc == 6, "usage: server PORT CONNS HOW | client PORT CONNS ROUNDS HOW");
    int port = atoi(argv[2]), conns = atoi(argv[3]), is_server = argc == 5, hands_over = !strcmp(argv[argc - 1], argv[1]);
    char message[SIZE] = {0};
    if (is_server) {
        int listener = listen_on(port);
        for (int left = conns; left > 0; left--) {
            int fd = accept_one(listener);
            without_nodelay(fd);
            while (recv_upto(fd, message, SIZE) == SIZE) {
                if (hands_over && message[0] == 'h') hand_over(fd);
                send_all(fd, message, SIZE);
            }
            close(fd);
        }
        return 0;
    }
    int rounds = atoi(argv[4]), count = 0, slow = 0;
    int64_t *times = calloc((size_t)conns * rounds, sizeof *times);
    for (int conn = 0; conn < conns; conn++) {
        int fd = connect_to(port);
        without_nodelay(fd);
        for (int round = 0; round < rounds; round++) {
            int64_t kept = kept_us(), began = now_us();
            message[0] = round == rounds / 2 ? 'h' : '.';
            message[1] = round;
            if (hands_over && message[0] == 'h') hand_over(fd);
            send_all(fd, message, SIZE);
            recv_all(fd, message, SIZE);
            expect(message[1] == (char)round, "the answer is the message");
            int64_t took = now_us() - began;
            slow += took > SLOW_US;
            kept = kept_us() - kept;
            times[count++] = took > kept ? took - kept : 0;
        }
        close(fd);
    }
    qsort(times, count, sizeof *times, by_time);
    say("%d %d %ld %ld", count, slow, (long)times[count - 1 - count / 1000], (long)times[count - 1]);
    return 0;
}
