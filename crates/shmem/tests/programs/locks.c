/* Locks are granted in the order of the calls (OpenSHMEM 1.5, 9.12), so every PE that competes gets its turn.
 * The system may suspend a PE before it asks for the lock, so a tenth of an equal share passes. Unfair locks
 * gave a PE 0.1 % of its share. */
#include <shmem.h>
#include <stdio.h>
#include <unistd.h>

enum { TOTAL = 800 };
static long lock;
static int taken;  /* at PE 0 */
static int holder; /* at PE 0 */
static int counts[64];

int main(void) {
    alarm(120); /* ends the job if a PE never gets the lock */
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), mine = 0, wrong = 0;
    shmem_barrier_all();
    for (int all = 0; all < TOTAL;) {
        shmem_set_lock(&lock);
        wrong += shmem_int_g(&holder, 0) != 0;
        shmem_int_p(&holder, me + 1, 0);
        all = shmem_int_g(&taken, 0) + 1;
        shmem_int_p(&taken, all, 0);
        usleep(100); /* long enough for the others to ask */
        shmem_int_p(&holder, 0, 0);
        shmem_clear_lock(&lock);
        mine++;
    }
    shmem_int_p(&counts[me], mine, 0);
    shmem_barrier_all();
    if (me == 0) {
        int sum = 0;
        for (int pe = 0; pe < n; pe++) {
            sum += counts[pe];
            if (counts[pe] * n * 10 < TOTAL) {
                fprintf(stderr, "PE %d got the lock %d of %d times\n", pe, counts[pe], TOTAL);
                wrong++;
            }
        }
        if (sum != shmem_int_g(&taken, 0)) wrong++;
    }
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
