/* Measures put, get, atomics, barriers, reductions and broadcasts of any OpenSHMEM 1.4 library. Prints one line for each case:
 *
 *   OPERATION BYTES LEAST MEDIAN          nanoseconds of one operation, in the fastest and in the median repeat
 *
 * Each repeat runs for at least the given time. Puts, and atomics without a result, end with one quiet for each repeat. Each reduction and each
 * broadcast is followed by a barrier, which the time includes. Other lines:
 *
 *   pinned PE FIRST COUNT                 the first processor that PE may use, and how many it may use
 *   checked BYTES 0                       puts, gets, atomics, reductions and broadcasts gave the right results
 *
 *   figures MILLISECONDS FIRST LARGEST OPERATION...      sizes from FIRST to LARGEST bytes; collectives up to 1 MiB */
#define _GNU_SOURCE
#include <sched.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPEATS 20
#define LARGEST_COLLECTIVE (1 << 20)

enum operation { PUT, GET, ADD, FETCH_ADD, SWAP, CSWAP, BARRIER, SUM, BROADCAST, OPERATIONS };
static const char *names[] = {"put", "get", "add", "fetch_add", "swap", "cswap", "barrier", "sum", "broadcast"};

static long reduce_sync[SHMEM_REDUCE_SYNC_SIZE], broadcast_sync[SHMEM_BCAST_SYNC_SIZE];
static long *work, *word, rounds, pinned[2];
static char *remote, *local;
static int me, pes, other;
static double target;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void run(enum operation operation, size_t bytes, long count) {
    switch (operation) {
    case PUT:
        for (long i = 0; i < count; i++) shmem_putmem(remote, local, bytes, other);
        shmem_quiet();
        break;
    case GET:
        for (long i = 0; i < count; i++) shmem_getmem(local, remote, bytes, other);
        break;
    case ADD:
        for (long i = 0; i < count; i++) shmem_long_atomic_add(word, 1, other);
        shmem_quiet();
        break;
    case FETCH_ADD:
        for (long i = 0; i < count; i++) shmem_long_atomic_fetch_add(word, 1, other);
        break;
    case SWAP:
        for (long i = 0; i < count; i++) shmem_long_atomic_swap(word, i, other);
        break;
    case CSWAP:
        for (long i = 0; i < count; i++) shmem_long_atomic_compare_swap(word, i, i + 1, other);
        break;
    case BARRIER:
        for (long i = 0; i < count; i++) shmem_barrier_all();
        break;
    case SUM:
        for (long i = 0; i < count; i++) {
            shmem_long_sum_to_all((long *)remote, (long *)(remote + bytes), bytes / 8, 0, 0, pes, work, reduce_sync);
            shmem_barrier_all();
        }
        break;
    case BROADCAST:
        for (long i = 0; i < count; i++) {
            shmem_broadcast64(remote, remote + bytes, bytes / 8, 0, 0, 0, pes, broadcast_sync);
            shmem_barrier_all();
        }
        break;
    default:
        break;
    }
}

/* Is the operation carried out by all PEs, or by PE 0 alone while the others wait in a barrier? */
static int by_all(enum operation operation) { return operation >= BARRIER; }
static int has_sizes(enum operation operation) { return operation <= GET || operation >= SUM; }

static int by_value(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static void measure(enum operation operation, size_t bytes) {
    double times[REPEATS];
    long count = 1;
    /* PE 0 finds how often the operation fits into the time, and tells the others. */
    for (;;) {
        shmem_barrier_all();
        double begun = now();
        if (me == 0 || by_all(operation)) run(operation, bytes, count);
        double took = now() - begun;
        if (me == 0) {
            rounds = took >= target ? 0 : took * 10 < target ? count * 10 : (long)(count * target / took * 1.2) + 1;
            for (int pe = 1; pe < pes; pe++) shmem_long_p(&rounds, rounds, pe);
        }
        shmem_barrier_all();
        if (rounds == 0) break;
        count = rounds;
        shmem_barrier_all();
    }
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        shmem_barrier_all();
        double begun = now();
        if (me == 0 || by_all(operation)) run(operation, bytes, count);
        times[repeat] = (now() - begun) / count;
    }
    shmem_barrier_all();
    if (me == 0) {
        qsort(times, REPEATS, sizeof *times, by_value);
        printf("%s %zu %.2f %.2f\n", names[operation], bytes, times[0] * 1e9, times[REPEATS / 2] * 1e9);
        fflush(stdout);
    }
}

/* Puts, gets, adds up and broadcasts values that were not there before, and compares the results. Returns 1 if one is wrong. */
static int check(size_t largest) {
    int wrong = 0;
    for (int get = 0; get < 2; get++) {
        char *from = get ? remote : local, *to = get ? local : remote;
        for (size_t i = 0; i < largest; i++) from[i] = (char)(i * 31 + i / 251 + get + 1);
        memset(to, 0, largest);
        shmem_barrier_all();
        if (get) shmem_getmem(local, remote, largest, other);
        else shmem_putmem(remote, local, largest, other);
        shmem_barrier_all();
        for (size_t i = 0; i < largest; i++) wrong |= to[i] != (char)(i * 31 + i / 251 + get + 1);
        shmem_barrier_all();
    }
    size_t longs = (largest < LARGEST_COLLECTIVE ? largest : LARGEST_COLLECTIVE) / 8;
    long *result = (long *)remote, *source = result + longs, sum = pes * (pes - 1) / 2;
    for (size_t i = 0; i < longs; i++) source[i] = me + (long)i, result[i] = -1;
    *word = 0;
    shmem_barrier_all();
    shmem_long_sum_to_all(result, source, longs, 0, 0, pes, work, reduce_sync);
    wrong |= shmem_long_atomic_compare_swap(word, 0, 5, other) != 0 || shmem_long_atomic_swap(word, 7, other) != 5;
    wrong |= shmem_long_atomic_fetch_add(word, 2, other) != 7;
    shmem_long_atomic_add(word, 3, other);
    shmem_barrier_all();
    wrong |= *word != 12;
    for (size_t i = 0; i < longs; i++) wrong |= result[i] != sum + pes * (long)i;
    shmem_barrier_all();
    shmem_broadcast64(result, source, longs, 0, 0, 0, pes, broadcast_sync);
    shmem_barrier_all();
    for (size_t i = 0; me > 0 && i < longs; i++) wrong |= result[i] != (long)i;
    shmem_barrier_all();
    return wrong;
}

static void print_processors(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
        if (CPU_ISSET(cpu, &set)) pinned[0] = cpu;
    pinned[1] = CPU_COUNT(&set);
    shmem_barrier_all();
    for (int pe = 0; me == 0 && pe < pes; pe++)
        printf("pinned %d %ld %ld\n", pe, shmem_long_g(&pinned[0], pe), shmem_long_g(&pinned[1], pe));
    fflush(stdout);
    shmem_barrier_all();
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: figures MILLISECONDS FIRST LARGEST OPERATION...\n"), 2;
    target = atof(argv[1]) * 1e-3;
    size_t first = strtoul(argv[2], NULL, 0), largest = strtoul(argv[3], NULL, 0);
    shmem_init();
    me = shmem_my_pe(), pes = shmem_n_pes(), other = (me + 1) % pes;
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) reduce_sync[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_BCAST_SYNC_SIZE; i++) broadcast_sync[i] = SHMEM_SYNC_VALUE;
    /* Both buffers begin at a page in every library. Otherwise the distance between them modulo 4096 would differ, and
     * copies stall if a load follows a store to the same offset of another page. */
    remote = shmem_align(4096, 2 * largest);
    work = shmem_malloc(LARGEST_COLLECTIVE + 8 * SHMEM_REDUCE_MIN_WRKDATA_SIZE);
    word = shmem_calloc(1, sizeof *word);
    /* Where the system backs private memory by large pages of 2 MiB, all of it then has them. With another alignment, the
     * first part would have small pages. */
    local = aligned_alloc(2 << 20, (largest + (2 << 20) - 1) >> 21 << 21);
    if (!remote || !work || !word || !local) return fprintf(stderr, "no memory\n"), 2;
    memset(remote, 0, 2 * largest);
    memset(local, 1, largest);
    print_processors();
    for (int operation = 0; operation < OPERATIONS; operation++) {
        int chosen = 0;
        for (int i = 4; i < argc; i++) chosen |= strcmp(argv[i], names[operation]) == 0;
        if (chosen && !has_sizes(operation)) measure(operation, operation == BARRIER ? 0 : 8);
        for (size_t bytes = first; chosen && has_sizes(operation) && bytes <= largest; bytes *= 2)
            if (!by_all(operation) || bytes <= LARGEST_COLLECTIVE) measure(operation, bytes);
    }
    int failed = 0;
    rounds = check(largest);
    shmem_barrier_all();
    for (int pe = 0; me == 0 && pe < pes; pe++)
        if (shmem_long_g(&rounds, pe)) fprintf(stderr, "PE %d found wrong results\n", pe), failed = 1;
    if (me == 0 && !failed) printf("checked %zu 0\n", largest), fflush(stdout);
    shmem_barrier_all();
    shmem_finalize();
    return rounds;
}
