/* threads THREADS PUTS BYTES [get]: the first half of the PEs puts to the second half, by THREADS threads with a context each. */
#include <shmem.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static int threads, number, bytes, gets;
static char *heap;
static double spent;
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static void *work(void *argument) {
    long t = (long)argument;
    char *source = calloc(1, bytes);
    shmem_ctx_t context;
    shmem_ctx_create(SHMEM_CTX_PRIVATE, &context);
    int to = shmem_my_pe() + shmem_n_pes() / 2;
    for (int i = 0; i < number; i++)
        if (gets) shmem_ctx_getmem(context, source, heap + t * bytes, bytes, to);
        else shmem_ctx_putmem(context, heap + t * bytes, source, bytes, to);
    shmem_ctx_quiet(context);
    shmem_ctx_destroy(context);
    free(source);
    return NULL;
}
int main(int argc, char **argv) {
    int provided;
    threads = atoi(argv[1]), number = atoi(argv[2]), bytes = atoi(argv[3]), gets = argc > 4;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    heap = shmem_malloc((size_t)threads * bytes);
    static double longest;
    int sends = shmem_my_pe() < shmem_n_pes() / 2;
    for (int round = 0; round < 4; round++) {
        pthread_t all[64];
        shmem_barrier_all();
        double begun = now();
        if (sends) {
            for (long t = 0; t < threads; t++) pthread_create(&all[t], NULL, work, (void *)t);
            for (int t = 0; t < threads; t++) pthread_join(all[t], NULL);
        }
        spent = now() - begun;
        shmem_double_max_reduce(SHMEM_TEAM_WORLD, &longest, &spent, 1);
        if (shmem_my_pe() == 0 && round)
            printf("%d PEs, %d threads, %d bytes, %s: %.3f million/s\n", shmem_n_pes(), threads, bytes, gets ? "get" : "put",
                   (double)number * threads * shmem_n_pes() / 2 / longest / 1e6);
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}
