/* PE 1 is killed while the PEs do what the argument says. The other PEs never end by themselves. */
#include <shmem.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static long word;
static char buffer[1 << 16];

int main(int argc, char **argv) {
    const char *doing = argc > 1 ? argv[1] : "";
    shmem_init();
    int me = shmem_my_pe(), next = (me + 1) % shmem_n_pes();
    char *heap = shmem_malloc(sizeof buffer);

    for (long round = 0;; round++) {
        if (me == 1 && (round == 50 || !strcmp(doing, "start"))) raise(SIGKILL);
        if (!strcmp(doing, "barrier")) {
            shmem_barrier_all();
        } else if (!strcmp(doing, "put")) {
            shmem_putmem(heap, buffer, sizeof buffer, next);
            shmem_quiet();
        } else if (!strcmp(doing, "get")) {
            shmem_getmem(buffer, heap, sizeof buffer, next);
        } else if (!strcmp(doing, "atomic")) {
            shmem_long_atomic_inc(&word, next);
            shmem_long_atomic_fetch_inc(&word, next);
        } else if (me != 1 && !strcmp(doing, "wait")) {
            shmem_long_wait_until(&word, SHMEM_CMP_EQ, 7);
        }
    }
}
