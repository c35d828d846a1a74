/* More PEs than processors: programs that poll in a loop of their own let other PEs run. A token goes round, and each PE
 * polls for it. A poll that kept its processor would be repeated for a whole time slice, 100,000 times and more. */
#include "check.h"
#include <stdlib.h>

enum { ROUNDS = 10, MOST = 30000 };

static long token, lock;

static long look(void) { return *(volatile long *)&token; }
static int test(long value) { return shmem_long_test(&token, SHMEM_CMP_GE, value); }
static int fetch(long value) { return shmem_long_atomic_fetch(&token, shmem_my_pe()) >= value; }
static int get(long value) { return shmem_long_g(&token, shmem_my_pe()) >= value; }
static int fetch_int(long value) { return shmem_int_atomic_fetch((int *)&token, shmem_my_pe()) >= value; }
static int get_int(long value) { return shmem_int_g((int *)&token, shmem_my_pe()) >= value; }
static int signal_fetch(long value) { return shmem_signal_fetch((uint64_t *)&token) >= (uint64_t)value; }
static int quiet(long value) { return shmem_quiet(), look() >= value; }
static int fence(long value) { return shmem_fence(), look() >= value; }

static int (*const polls[])(long) = {test, fetch, get, fetch_int, get_int, signal_fetch, quiet, fence};

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes(), right = (me + 1) % pes;
    for (int how = 0; how < 8; how++) {
        long count = 0;
        token = 0;
        shmem_barrier_all();
        for (long round = 1; round <= ROUNDS; round++) {
            if (me == 0) shmem_long_atomic_set(&token, round, right);
            while (!polls[how](round)) count++;
            if (me != 0) shmem_long_atomic_set(&token, round, right);
            shmem_quiet();
        }
        if (count >= ROUNDS * MOST) fprintf(stderr, "PE %d, way %d: %ld polls\n", me, how, count), wrong++;
        shmem_barrier_all();
    }

    /* Locks that are not free. */
    long count = 0;
    for (long round = 1; round <= ROUNDS; round++) {
        while (shmem_test_lock(&lock)) count++;
        shmem_clear_lock(&lock);
    }
    CHECK(count < ROUNDS * MOST);
    shmem_finalize();
    return wrong;
}
