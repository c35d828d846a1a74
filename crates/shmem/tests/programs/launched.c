/* Runs under launchers. Arguments: the expected number of PEs, what to do, and a folder. */
#include <shmem.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long sum, word;

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *how = argv[2];
    /* The first process that makes the folder never starts. */
    if (strcmp(how, "absent") == 0 && mkdir(argv[3], 0700) == 0)
        for (;;) pause();
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    if (n != atoi(argv[1])) return 3;
    for (int pe = 0; pe < n; pe++) shmem_long_atomic_add(&sum, me + 1, pe);
    shmem_barrier_all();
    if (sum != (long)n * (n + 1) / 2) return 4;
    if (strcmp(how, "global") == 0) {
        if (me == n - 1) shmem_global_exit(7);
        for (;;) pause();
    }
    if (strcmp(how, "stopped") == 0) {
        if (me == 1) raise(SIGSTOP);
        /* Until it is stopped, PE 1 answers. */
        if (me == 0)
            for (;;) shmem_long_atomic_fetch(&word, 1);
    }
    if (strcmp(how, "large") == 0) {
        char *large = shmem_malloc(3 << 20);
        if (!large || shmem_malloc(3 << 20)) return 5;
    }
    shmem_finalize();
    return 0;
}
