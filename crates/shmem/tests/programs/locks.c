/* Locks are granted in the order of the calls (OpenSHMEM 1.5, 9.12), so few others get the lock between a PE's call and its
 * turn. The system may suspend a PE between its look at the count and its call, so only half of the calls must show
 * that. With unfair locks, hundreds of others get the lock first. */
#include "check.h"

enum { EACH = 40 };
static long lock;
static int taken;    /* at PE 0: how often the lock was taken */
static int holder;   /* at PE 0 */
static int finished; /* at PE 0: the number of PEs that took the lock EACH times */
static int sum;      /* at PE 0 */

int main(void) {
    progress();
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), mine = 0, fair = 0;
    shmem_barrier_all();
    while (shmem_int_atomic_fetch(&finished, 0) < n) {
        progress();
        int before = shmem_int_g(&taken, 0);
        shmem_set_lock(&lock);
        wrong += shmem_int_g(&holder, 0) != 0;
        shmem_int_p(&holder, me + 1, 0);
        int now = shmem_int_g(&taken, 0);
        shmem_int_p(&taken, now + 1, 0);
        usleep(100); /* long enough for the others to ask */
        shmem_int_p(&holder, 0, 0);
        shmem_clear_lock(&lock);
        mine++;
        fair += now - before < 2 * n;
        if (mine == EACH) shmem_int_atomic_inc(&finished, 0);
    }
    shmem_int_atomic_add(&sum, mine, 0);
    if (2 * fair < mine) {
        fprintf(stderr, "PE %d got the lock %d times, but only %d times before others that asked later\n", me, mine, fair);
        wrong++;
    }
    shmem_barrier_all();
    if (me == 0 && sum != taken) wrong++;
    /* shmem_test_lock sets a free lock and returns 0. It returns 1 if the lock is held. */
    shmem_barrier_all();
    if (me == 0) wrong += shmem_test_lock(&lock) != 0;
    shmem_barrier_all();
    wrong += me != 0 && shmem_test_lock(&lock) != 1;
    shmem_barrier_all();
    if (me == 0) shmem_clear_lock(&lock);

    /* A test of a lock that this PE holds does not disturb the PEs that wait for it. */
    shmem_barrier_all();
    if (me == 0) shmem_set_lock(&lock);
    shmem_barrier_all();
    if (me != 0) shmem_set_lock(&lock);
    usleep(20000); /* long enough for the others to ask */
    wrong += me == 0 && shmem_test_lock(&lock) != 1;
    shmem_clear_lock(&lock);
    shmem_finalize();
    return wrong != 0;
}
