/* Over TCP, a PE that calls the library every 0.3 ms, but never waits in it, delays no other PE: what the socket had no
 * room for is sent between the calls, and other PEs' gets are answered.
 *
 * Counts the calls that the PE makes meanwhile. If only calls made progress, every 64th did: most rounds would take hundreds
 * of calls, and a get about 64. On a busy machine, the library's thread may not run for many calls. The rounds are therefore
 * repeated until IN_A_ROW of them took few calls. */
#include "check.h"
#include <time.h>

enum { PUTS = 14, BYTES = 65536, FEW_FOR_ROUND = 200, FEW_FOR_GET = 30, IN_A_ROW = 20, SECONDS = 60 };

static long flag, arrived, word, finished;
static char source[BYTES];

static long load(const long *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Calls the library every 0.3 ms until `from` is `value`. Returns the number of calls. */
static long call_until(const long *from, long value, int other) {
    long calls = 0;
    for (; load(from) != value; calls++) {
        nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
        shmem_long_atomic_add(&word, 1, other);
    }
    return calls;
}

int main(void) {
    shmem_init();
    int me = shmem_my_pe();
    char *target = shmem_malloc(PUTS * BYTES);

    /* A flag behind puts that the socket has no room for. PE 1 answers each round, until the flag is -1. */
    if (me == 0) {
        int row = 0;
        double end = seconds() + SECONDS;
        for (long round = 1; row < IN_A_ROW && seconds() < end; round++) {
            for (int put = 0; put < PUTS; put++) shmem_putmem(target + put * BYTES, source, BYTES, 1);
            shmem_fence();
            shmem_long_p(&flag, round, 1);
            row = call_until(&arrived, round, 1) < FEW_FOR_ROUND ? row + 1 : 0;
        }
        CHECK(row == IN_A_ROW);
        shmem_long_p(&flag, -1, 1);
    } else {
        for (long seen = 0; shmem_long_wait_until(&flag, SHMEM_CMP_NE, seen), (seen = load(&flag)) != -1;) {
            shmem_long_p(&arrived, seen, 0);
        }
    }

    /* Gets from a PE that makes such calls. They increment PE 0's word. */
    shmem_barrier_all();
    if (me == 0) {
        int row = 0;
        double end = seconds() + SECONDS;
        while (row < IN_A_ROW && seconds() < end) {
            long before = load(&word);
            shmem_getmem(source, target, 4096, 1);
            row = load(&word) - before < FEW_FOR_GET ? row + 1 : 0;
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
        CHECK(row == IN_A_ROW);
        shmem_long_p(&finished, 1, 1);
        shmem_quiet();
    } else {
        call_until(&finished, 1, 0);
    }
    shmem_finalize();
    return wrong;
}
