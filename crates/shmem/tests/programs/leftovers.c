/* Each PE starts a child, writes the numbers of both processes to a folder, and never ends by itself. With the
 * argument "exit", PE 1 ends the job when all are ready. The others compute, and have text in a buffer. */
#include <shmem.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void note(const char *folder, const char *what) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s.%d", folder, what, (int)getpid());
    FILE *file = fopen(name, "w");
    fclose(file);
}

int main(int argc, char **argv) {
    const char *how = argv[1], *folder = argv[2];
    char name[4096];
    if (argc != 3) return 2;
    shmem_init();
    if (fork() == 0) {
        note(folder, "child");
        for (;;) pause();
    }
    snprintf(name, sizeof name, "%s/output.%d", folder, shmem_my_pe());
    if (!freopen(name, "w", stdout)) return 3;
    printf("written by PE %d", shmem_my_pe());
    note(folder, "pe");
    shmem_barrier_all();
    if (strcmp(how, "exit") == 0 && shmem_my_pe() == 1) shmem_global_exit(0);
    for (volatile long i = 0;; i++);
}
