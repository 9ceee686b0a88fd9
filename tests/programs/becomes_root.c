// Becomes root wholly, where it has root's rights (setuid), and executes its arguments.
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2 || setresgid(0, 0, 0) || setresuid(0, 0, 0)) {
        perror("becomes_root");
        return 1;
    }
    execv(argv[1], argv + 1);
    perror(argv[1]);
    return 1;
}
