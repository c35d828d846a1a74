/* Linked statically, with a shmem_barrier_all of its own, as a profiling tool has it. */
#include <pshmem.h>
#include <shmem.h>

static int calls;
static long word;

void shmem_barrier_all(void) {
    calls++;
    pshmem_barrier_all();
}

int main(void) {
    shmem_init();
    shmem_long_atomic_inc(&word, 0);
    shmem_barrier_all();
    int wrong = calls != 1 || shmem_long_g(&word, 0) != shmem_n_pes();
    shmem_barrier_all();
    shmem_finalize();
    return wrong;
}
