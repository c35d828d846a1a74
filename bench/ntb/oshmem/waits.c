/* Measures how fair locks are, and how soon a waiting PE notices a store through shmem_ptr. Works with any OpenSHMEM 1.4 library.
 *
 *   waits SECONDS
 *
 * All PEs take one lock again and again for this time. Prints how often each PE held it:
 *
 *   lock COUNT...
 *
 * Then PE 0 stores to PE 1's memory through shmem_ptr every 5 to 15 ms, while PE 1 waits in shmem_wait_until. Prints the mean and the longest time in
 * microseconds from the store to the return of the wait, and the share of a processor that PE 1's process used meanwhile:
 *
 *   noticed MEAN LONGEST SHARE */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#define STORES 200

static long lock, held;
static long flag;
static double returned, share;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double processor_time(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 2;
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes();
    shmem_barrier_all();
    for (double end = now() + seconds; now() < end; held++) {
        shmem_set_lock(&lock);
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    if (me == 0) {
        printf("lock");
        for (int pe = 0; pe < pes; pe++) printf(" %ld", shmem_long_g(&held, pe));
        printf("\n");
    }
    /* The word lies in the symmetric heap, because shmem_ptr need not reach static objects. */
    long *word = shmem_calloc(1, sizeof *word);
    long *remote = pes > 1 ? shmem_ptr(word, 1) : NULL;
    double sum = 0, longest = 0, begun = now(), used = processor_time();
    for (long i = 1; remote && me < 2 && i <= STORES; i++) {
        if (me == 1) {
            shmem_long_wait_until(word, SHMEM_CMP_EQ, i);
            returned = now();
            shmem_long_p(&flag, i, 0);
            continue;
        }
        double pause = (5 + i * 7919 % 1000 / 100.0) * 1e-3, store;
        for (store = now() + pause; now() < store;) {}
        store = now();
        __atomic_store_n(remote, i, __ATOMIC_RELEASE);
        shmem_long_wait_until(&flag, SHMEM_CMP_EQ, i);
        double took = shmem_double_g(&returned, 1) - store;
        sum += took;
        longest = took > longest ? took : longest;
    }
    if (me == 1) share = (processor_time() - used) / (now() - begun);
    shmem_barrier_all();
    if (me == 0 && !remote) printf("noticed: shmem_ptr gives no pointer\n");
    if (me == 0 && remote) printf("noticed %.1f %.1f %.3f\n", sum / STORES * 1e6, longest * 1e6, shmem_double_g(&share, 1));
    fflush(stdout);
    shmem_barrier_all();
    shmem_finalize();
}
