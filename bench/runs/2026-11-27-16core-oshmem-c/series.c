/* series BYTES COUNT...: for each COUNT, repeats COUNT puts and a quiet. Prints
 *   series BYTES COUNT REPEATS LEAST MEDIAN MEDIAN_OF_LOOP        nanoseconds of one put with its part of the quiet; the loop without it
 * If libcount.so is preloaded, prints the calls of all repeats, without the barriers between them as far as PE 0 is concerned. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
extern void count_calls(const char *) __attribute__((weak));
extern void count_reset(void) __attribute__((weak));
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static int by_value(const void *a, const void *b) { double d = *(const double *)a - *(const double *)b; return (d > 0) - (d < 0); }
int main(int argc, char **argv) {
    size_t bytes = strtoul(argv[1], 0, 0);
    int nbi = getenv("SERIES_NBI") != NULL;
    shmem_init();
    int me = shmem_my_pe();
    char *remote = shmem_align(4096, 8192), *local = aligned_alloc(4096, 8192);
    memset(local, 1, 8192);
    for (int i = 2; i < argc; i++) {
        long count = atol(argv[i]);
        int repeats = count >= 50000 ? 5 : count >= 3000 ? 9 : 21;
        double total[32], loop[32];
        for (int warm = 0; warm < 2; warm++) { /* the first round warms up */
            shmem_barrier_all();
            if (count_reset && warm) count_reset();
            for (int r = 0; r < (warm ? repeats : 1); r++) {
                shmem_barrier_all();
                if (me == 0) {
                    double t = now();
                    if (nbi) for (long k = 0; k < count; k++) shmem_putmem_nbi(remote, local, bytes, 1);
                    else for (long k = 0; k < count; k++) shmem_putmem(remote, local, bytes, 1);
                    double u = now();
                    shmem_quiet();
                    double e = now();
                    total[r] = (e - t) / count * 1e9, loop[r] = (u - t) / count * 1e9;
                }
            }
            shmem_barrier_all();
        }
        if (count_calls) { char label[100]; snprintf(label, sizeof label, "%s pe %d bytes %zu count %ld repeats %d", getenv("COUNT_LABEL") ? getenv("COUNT_LABEL") : "", me, bytes, count, repeats); count_calls(label); }
        if (me == 0) {
            qsort(total, repeats, sizeof *total, by_value), qsort(loop, repeats, sizeof *loop, by_value);
            printf("series %zu %ld %d %.1f %.1f %.1f\n", bytes, count, repeats, total[0], total[repeats / 2], loop[repeats / 2]);
            fflush(stdout);
        }
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}
