/* PE 1 ends in the way that the argument names. The other PEs wait for PE 1. */
#include <shmem.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int never;

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "late";
    start_pes(0);
    if (strcmp(how, "twice") == 0) {
        shmem_init();
        shmem_finalize();
        shmem_finalize();
        return 0;
    }
    if (_my_pe() == 1) {
        if (strcmp(how, "global") == 0) shmem_global_exit(9);
        if (strcmp(how, "status") == 0) _exit(5);
        if (strcmp(how, "return") == 0) return 6;
        if (strcmp(how, "abort") == 0) abort();
        if (strcmp(how, "quick") == 0) _exit(0);
        if (strcmp(how, "early") == 0) return 0;
    }
    if (strcmp(how, "return") == 0) shmem_int_wait_until(&never, SHMEM_CMP_EQ, 1);
    do shmem_barrier_all();
    while (strcmp(how, "early") == 0);
    return 0; /* without shmem_finalize, as programs for OpenSHMEM before 1.2 do */
}
