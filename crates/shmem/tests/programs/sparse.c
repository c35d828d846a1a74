/* Over TCP, a PE that calls the library every 0.3 ms, but never waits in it, delays no other PE: what the socket had no
 * room for is sent between the calls, and other PEs' gets are answered. */
#include "check.h"
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 40, PUTS = 14, BYTES = 65536 };

static long flag, arrived, word, finished;
static char source[BYTES];

static double milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median(double *values) {
    qsort(values, ROUNDS, sizeof *values, ascending);
    return values[ROUNDS / 2];
}

static long load(const long *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

/* Calls the library every 0.3 ms until `from` is `value`. Returns the number of calls. */
static int call_until(const long *from, long value, int other) {
    int calls = 0;
    for (; load(from) != value; calls++) {
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
        shmem_long_atomic_add(&word, 1, other);
    }
    return calls;
}

int main(void) {
    double calls[ROUNDS], gets[ROUNDS];
    shmem_init();
    int me = shmem_my_pe();
    char *target = shmem_malloc(PUTS * BYTES);

    /* A flag behind puts that the socket has no room for. */
    for (long round = 1; round <= ROUNDS; round++) {
        shmem_barrier_all();
        if (me == 0) {
            for (int put = 0; put < PUTS; put++) shmem_putmem(target + put * BYTES, source, BYTES, 1);
            shmem_fence();
            shmem_long_p(&flag, round, 1);
            calls[round - 1] = call_until(&arrived, round, 1);
        } else {
            shmem_long_wait_until(&flag, SHMEM_CMP_EQ, round);
            shmem_long_p(&arrived, round, 0);
        }
    }
    if (me == 0) CHECK(median(calls) < 30);

    /* Gets from a PE that makes such calls. */
    shmem_barrier_all();
    if (me == 0) {
        for (int get = 0; get < ROUNDS; get++) {
            double start = milliseconds();
            shmem_getmem(source, target, 4096, 1);
            gets[get] = milliseconds() - start;
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
        shmem_long_p(&finished, 1, 1);
        shmem_quiet();
        CHECK(median(gets) < 5);
    } else {
        call_until(&finished, 1, 0);
    }
    shmem_finalize();
    return wrong;
}
