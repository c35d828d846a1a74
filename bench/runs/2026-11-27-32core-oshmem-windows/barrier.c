/* Measures barriers, reductions, exchanges and waits for words. Prints one line for each operation at PE 0:
 *
 *   OPERATION PES ROUNDS MEAN MEDIAN P99 MOST      microseconds of one operation
 *
 *   barrier SECONDS     the most seconds of one operation */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 200000
static double times[MOST];
static long sync_words[SHMEM_REDUCE_SYNC_SIZE], work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 8], a[8], b[8], stop, turn;
static long box[2048];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static int compare(const void *x, const void *y) { return *(double *)x < *(double *)y ? -1 : *(double *)x > *(double *)y; }

static void one(int operation, int me, int pes, long round) {
    switch (operation) {
    case 0: shmem_barrier_all(); break;
    case 1: /* as conveyors do: a sum and a barrier */
        shmem_long_sum_to_all(b, a, 1, 0, 0, pes, work, sync_words);
        shmem_barrier_all();
        break;
    case 2: /* each PE puts to each other, then a barrier */
        for (int i = 1; i <= pes; i++) shmem_long_p(&box[me], round, (me + i) % pes);
        shmem_barrier_all();
        break;
    case 3: /* a token goes around; every PE waits for its word */
        if (me == 0) shmem_long_p(&turn, round, 1 % pes);
        shmem_long_wait_until(&turn, SHMEM_CMP_GE, round);
        if (me != 0) shmem_long_p(&turn, round, (me + 1) % pes);
        break;
    }
}

int main(int count, char **args) {
    static const char *names[] = {"barrier", "sum", "exchange", "ring"};
    double limit = count > 1 ? atof(args[1]) : 1;
    int operations = count > 2 ? atoi(args[2]) : 4;
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes();
    for (int operation = 0; operation < operations; operation++) {
        long rounds = 0, at = 0;
        turn = 0;
        for (int i = 0; i < 5; i++) shmem_barrier_all();
        double begin = now(), last = begin;
        /* PE 0 decides every so often whether to go on, so that all do the same number of rounds. */
        for (long batch = 1; rounds < MOST - 2000;) {
            for (long i = 0; i < batch; i++) {
                one(operation, me, pes, ++at);
                double t = now();
                times[rounds++] = t - last;
                last = t;
            }
            if (me == 0) {
                stop = now() - begin > limit;
                if (!stop && (last - begin) / rounds * batch * 2 < limit / 10 && batch < 1000) batch *= 2;
                for (int pe = 1; pe < pes; pe++) shmem_long_p(&a[7], stop ? -1 : batch, pe);
                a[7] = stop ? -1 : batch;
            }
            shmem_barrier_all();
            long next = *(volatile long *)&a[7];
            shmem_barrier_all();
            last = now();
            if (next < 0) break;
            batch = next;
        }
        if (me == 0) {
            double sum = 0;
            for (long i = 0; i < rounds; i++) sum += times[i];
            qsort(times, rounds, sizeof(double), compare);
            printf("%s %d %ld %.2f %.2f %.2f %.2f\n", names[operation], pes, rounds, sum / rounds * 1e6, times[rounds / 2] * 1e6, times[rounds * 99 / 100] * 1e6, times[rounds - 1] * 1e6);
            fflush(stdout);
        }
    }
    shmem_finalize();
    return 0;
}
