/* A server or client whose code is partly made while it runs, or changed: what it calls from there goes round the patched sites.
 *
 *   jit serve PLACE | jit dial PORT PLACE     PLACE: warm (all by its own calls), made (each tenth message by made code), early (the first, too)
 */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static long (*made_call)(long, long, long, long);

static void expect(int is, const char *what) {
    if (is) return;
    fprintf(stderr, "jit: %s\n", what);
    exit(1);
}

#ifdef WORDS
/* In its text, bytes that look like a system call and are data. */
__asm__(".text\n.globl words\nwords: .asciz \"not \\017\\005 a call, nor \\017\\005\\303 this\"\n");
extern const char words[];
#else
static const char words[] = "none\n";
#endif

static void make(void) {
    /* mov %rdi, %rax; mov %rsi, %rdi; mov %rdx, %rsi; mov %rcx, %rdx; syscall; ret */
    static const unsigned char code[] = "\x48\x89\xf8\x48\x89\xf7\x48\x89\xd6\x48\x89\xca\x0f\x05\xc3";
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(at != MAP_FAILED, "memory for code");
    memcpy(at, code, sizeof code);
    made_call = at;
    expect(words[0] == 'n', "its own words");
}

static void all(int fd, char *bytes, size_t count, int by_made, int reads) {
    for (size_t at = 0; at < count;) {
        ssize_t n;
        if (by_made) n = made_call(reads ? SYS_read : SYS_write, fd, (long)bytes + at, count - at);
        else n = reads ? read(fd, bytes + at, count - at) : write(fd, bytes + at, count - at);
        expect(n > 0, "the bytes move");
        at += n;
    }
}

int main(int argc, char **argv) {
    int serves = argc == 3 && !strcmp(argv[1], "serve"), fd;
    const char *place = argv[argc - 1];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    static char sent[3000], got[3000];
    expect(serves || argc == 4, "usage");
    make();
    int own = socket(AF_INET, SOCK_STREAM, 0);
    if (serves) {
        expect(!bind(own, (void *)&at, size) && !listen(own, 1) && !getsockname(own, (void *)&at, &size), "listen");
        printf("%d\n", ntohs(at.sin_port));
        fflush(stdout);
        fd = accept(own, NULL, NULL);
    } else {
        at.sin_port = htons(atoi(argv[2]));
        expect(!connect(own, (void *)&at, size), "connect");
        fd = own;
    }
    for (int n = 0; n < 3000; n++) {
        int by_made = strcmp(place, "warm") && n % 10 == (strcmp(place, "early") ? 9 : 0);
        memset(sent, n, sizeof sent);
        if (!serves) all(fd, sent, 1 + n % 3000, by_made, 0);
        all(fd, got, 1 + n % 3000, by_made, 1);
        expect(!memcmp(sent, got, 1 + n % 3000), "the same bytes");
        if (serves) all(fd, got, 1 + n % 3000, by_made, 0);
    }
    puts("done");
    return 0;
}
