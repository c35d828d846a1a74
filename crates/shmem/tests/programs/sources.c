/* The source of a blocking put may be reused at the return (OpenSHMEM 1.5, section 9.5.1), however many puts are in
 * flight. Each PE puts more bytes than sockets buffer, from two threads, and overwrites the sources at once. */
#include "check.h"
#include <pthread.h>
#include <string.h>

enum { THREADS = 2, SPAN = 6 << 20, ROUNDS = 40 };

static const int sizes[] = {8, 500, 4096, 65536, 65537, 200000};
static char *target;
static char sources[THREADS][200000];
static long number, flag;

/* Returns the value of all bytes of one put. No two neighbouring puts have the same one. */
static char value(int pe, int thread, int put) { return (char)(1 + (pe * 31 + thread * 7 + put) % 120); }

static void *put_many(void *argument) {
    int thread = *(int *)argument, me = shmem_my_pe(), right = (me + 1) % shmem_n_pes();
    size_t at = 0;
    for (int put = 0;; put++) {
        size_t bytes = sizes[put % 6];
        if (at + bytes > SPAN) break;
        memset(sources[thread], value(me, thread, put), bytes);
        shmem_putmem(target + thread * SPAN + at, sources[thread], bytes, right);
        memset(sources[thread], 0, bytes);
        at += bytes;
    }
    return NULL;
}

static void check_target(void) {
    int left = (shmem_my_pe() + shmem_n_pes() - 1) % shmem_n_pes();
    for (int thread = 0; thread < THREADS; thread++) {
        size_t at = 0, different = 0;
        for (int put = 0; at + sizes[put % 6] <= SPAN; put++)
            for (int i = 0; i < sizes[put % 6]; i++, at++)
                different += target[thread * SPAN + at] != value(left, thread, put);
        CHECK(different == 0);
    }
}

int main(void) {
    int provided, names[THREADS];
    pthread_t threads[THREADS];
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    CHECK(provided == SHMEM_THREAD_MULTIPLE);
    target = shmem_calloc(THREADS, SPAN);
    for (int t = 0; t < THREADS; t++) names[t] = t, pthread_create(&threads[t], NULL, put_many, &names[t]);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    shmem_barrier_all();
    check_target();
    shmem_barrier_all();

    /* A put after a fence arrives after all puts before it. */
    int me = shmem_my_pe(), right = (me + 1) % shmem_n_pes(), left = (me + shmem_n_pes() - 1) % shmem_n_pes();
    for (int round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < 40; i++) {
            memset(sources[0], value(me, round, i), 60000);
            shmem_putmem(target + i * 60000, sources[0], 60000, right);
            memset(sources[0], 0, 60000);
        }
        number = round;
        shmem_fence();
        shmem_long_put(&flag, &number, 1, right);
        number = -1;
        shmem_long_wait_until(&flag, SHMEM_CMP_GE, round);
        CHECK(flag == round);
        size_t different = 0;
        for (int i = 0; i < 40 * 60000; i++) different += target[i] != value(left, round, i / 60000);
        CHECK(different == 0);
        shmem_barrier_all();
    }
    shmem_finalize();
    return wrong;
}
