/* MSG_ZEROCOPY over sockets of each kind, as the kernel's own selftest does it (tools/testing/selftests/net/msg_zerocopy.c).
 *   zerocopy_kinds receive|send tcp|udp|raw|unix 0|1 (with the option) 0|1 (corked) ADDRESS PORT
 * Prints what arrived, and what the notices said. */
#include "bed.h"
#include <linux/errqueue.h>
#include <netinet/udp.h>

#define MESSAGES 12
#define SIZE 1000

static const char *kind;
static char byte[1];

static int is(const char *name) {
    return !strcmp(kind, name);
}

static int make(const char *address, int port, struct sockaddr_in6 *to, socklen_t *size) {
    *to = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    *size = sizeof *to;
    if (inet_pton(AF_INET6, address, &to->sin6_addr) != 1) {
        struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
        expect(inet_pton(AF_INET, address, &v4.sin_addr) == 1, "an address");
        memcpy(to, &v4, *size = sizeof v4);
    }
    if (is("raw")) to->sin6_port = 0;
    int fd = is("tcp") ? socket(to->sin6_family, SOCK_STREAM, 0)
             : is("udp") ? socket(to->sin6_family, SOCK_DGRAM, 0)
                         : socket(to->sin6_family, SOCK_RAW, 253);
    if (fd < 0) die("socket");
    return fd;
}

static void receive(int fd) {
    static char data[65536];
    struct timeval patience = {10, 0};
    size_t total = 0, header = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (total < MESSAGES * SIZE) {
        ssize_t got = recv(fd, data, sizeof data, 0);
        if (got < 0) die("recv");
        if (is("raw") && (data[0] & 0xf0) == 0x40) header = 20; /* IPv4 shows its header */
        for (ssize_t i = header; i < got; i++) expect(data[i] == 'z', "bytes are as they were sent");
        total += got - header;
    }
    say("received %zu", total);
}

static void notices(int fd, unsigned calls) {
    unsigned next = 0, codes = 0;
    int level = 0;
    while (next < calls) {
        char control[256];
        struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
        struct pollfd one = {fd, 0, 0};
        expect(poll(&one, 1, 10000) == 1 && one.revents & POLLERR, "a notice is POLLERR");
        expect(recvmsg(fd, &message, MSG_ERRQUEUE) == 0 && message.msg_flags == MSG_ERRQUEUE, "it is read");
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
        struct sock_extended_err *error = (void *)CMSG_DATA(cmsg);
        expect(error->ee_origin == SO_EE_ORIGIN_ZEROCOPY && error->ee_errno == 0, "its origin and errno");
        expect(error->ee_info == next, "numbers follow each other");
        expect(!level || level == cmsg->cmsg_level * 100 + cmsg->cmsg_type, "all of one kind");
        level = cmsg->cmsg_level * 100 + cmsg->cmsg_type;
        next = error->ee_data + 1;
        codes |= 1u << error->ee_code;
    }
    say("%u calls told of, level and type %d, codes %x, then %s", next, level, codes, outcome(recv(fd, byte, 1, MSG_ERRQUEUE)));
}

static unsigned transmit(int fd, int corked) {
    static char data[SIZE];
    unsigned calls = 0;
    memset(data, 'z', sizeof data);
    for (int i = 0; i < MESSAGES; i++) {
        int cork = 1;
        if (corked && is("udp")) setsockopt(fd, IPPROTO_UDP, UDP_CORK, &cork, sizeof cork);
        if (corked && is("tcp")) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork);
        /* Corked, and raw: one part, so that a message is one packet. */
        int parts = corked && !is("raw") ? 4 : 1;
        for (int part = 0; part < parts; part++, calls++)
            if (send(fd, data, SIZE / parts, MSG_ZEROCOPY | MSG_NOSIGNAL) != SIZE / parts) die("send");
        cork = 0;
        if (corked && is("udp")) setsockopt(fd, IPPROTO_UDP, UDP_CORK, &cork, sizeof cork);
        if (corked && is("tcp")) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof cork);
    }
    return calls;
}

int main(int argc, char **argv) {
    expect(argc == 7, "usage");
    int is_receiver = !strcmp(argv[1], "receive"), with_option = atoi(argv[3]), corked = atoi(argv[4]), on = 1;
    kind = argv[2];
    sync_open(is_receiver);
    struct sockaddr_in6 address;
    socklen_t size;
    int fd, pair[2];
    if (is("unix")) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) die("socketpair");
        say("SO_ZEROCOPY: %s", outcome(setsockopt(pair[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)));
        transmit(pair[0], 0);
        receive(pair[1]);
        say("no notice: %s", outcome(recv(pair[0], byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT)));
        return 0;
    }
    fd = make(argv[5], atoi(argv[6]), &address, &size);
    if (is_receiver) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, (void *)&address, size)) die("bind");
        if (is("tcp") && listen(fd, 8)) die("listen");
        tell();
        if (is("tcp")) fd = accept(fd, NULL, NULL);
        receive(fd);
        tell();
        await();
        return 0;
    }
    await();
    if (connect(fd, (void *)&address, size)) die("connect");
    if (with_option) {
        int set = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on);
        say("SO_ZEROCOPY: %s", outcome(set));
        with_option = set == 0;
    }
    unsigned calls = transmit(fd, corked);
    await();
    notices(fd, with_option ? calls : 0);
    tell();
    return 0;
}
