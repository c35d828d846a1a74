/* Stops PE 1 inside shmem_init, where PE 0 waits for it: UCX allocates memory by shmget, and this program replaces that
 * function. Each PE writes its process ID to two files in a folder: before shmem_init, and in shmget. */
#include <shmem.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *folder;

static void note(const char *what) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s.%d", folder, what, (int)getpid());
    FILE *file = fopen(name, "w");
    fclose(file);
}

int shmget(int key, size_t size, int flags) {
    if (size > 1 << 20) { /* UCX first tries the function with a small segment, before the PE has joined the job */
        note("child");
        if (strcmp(getenv("INLANE_NTB_PE"), "1") == 0) raise(SIGSTOP);
    }
    return (int)syscall(SYS_shmget, key, size, flags);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    folder = argv[2];
    note("pe");
    shmem_init();
    return 0;
}
