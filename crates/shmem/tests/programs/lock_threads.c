/* Threads of one PE compete for a lock, also with the threads of other PEs. Every thread gets the lock, and only one
 * thread holds it at a time. */
#include "check.h"
#include <pthread.h>
#include <unistd.h>

enum { ROUNDS = 1000 };

static long lock;
static long taken; /* at PE 0; only the holder of the lock changes it */

/* Adds 1 without an atomic. Another holder at the same time would destroy the sum. */
static void hold(void) {
    progress();
    shmem_long_p(&taken, shmem_long_g(&taken, 0) + 1, 0);
    shmem_clear_lock(&lock);
}

static void *by_set(void *nothing) {
    for (int i = 0; i < ROUNDS; i++) {
        shmem_set_lock(&lock);
        hold();
    }
    return nothing;
}

static void *by_test(void *nothing) {
    for (int i = 0; i < ROUNDS; i++) {
        while (shmem_test_lock(&lock)) usleep(1);
        hold();
    }
    return nothing;
}

static void compete(void *(*first)(void *), void *(*second)(void *)) {
    pthread_t threads[2];
    taken = 0;
    shmem_barrier_all();
    pthread_create(&threads[0], NULL, first, NULL);
    pthread_create(&threads[1], NULL, second, NULL);
    for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
    shmem_barrier_all();
    CHECK(shmem_long_g(&taken, 0) == 2L * ROUNDS * shmem_n_pes());
    shmem_barrier_all();
}

int main(void) {
    int provided;
    progress();
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    compete(by_set, by_set);
    compete(by_set, by_test);
    compete(by_test, by_test);
    shmem_finalize();
    return wrong;
}
