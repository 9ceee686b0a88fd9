// Prints what a program is given by who executes it, and what it can see of who did. Ends with 7, or by the signal of its argument; with
// "pause" it waits to be ended.
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void show_file(const char *path, const char **wanted) {
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        for (const char **one = wanted; *one; one++)
            if (!strncmp(line, *one, strlen(*one))) fputs(line, stdout);
    if (file) fclose(file);
}

int main(int argc, char **argv) {
    char path[4096] = {0};
    printf("name %s, arguments %d\n", argv[0], argc);
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0) printf("file %s\n", path);
    printf("effective user %d\n", (int)geteuid());
    printf("leads a group: %d, a session: %d\n", getpgrp() == getpid(), getsid(0) == getpid());
    const char *wanted[] = {"Name:", "TracerPid:", "SigPnd:", "ShdPnd:", "SigBlk:", "SigIgn:", "SigCgt:", 0};
    show_file("/proc/self/status", wanted);
    DIR *open_files = opendir("/proc/self/fd");
    int all = 0;
    for (struct dirent *one; open_files && (one = readdir(open_files));) all += one->d_name[0] != '.';
    printf("descriptors: %d\n", all);
    printf("a child: %d\n", (int)waitpid(-1, 0, WNOHANG | __WALL));
    fflush(stdout);
    while (argc > 1 && !strcmp(argv[1], "pause")) pause();
    if (argc > 1 && atoi(argv[1])) raise(atoi(argv[1]));
    return 7;
}
