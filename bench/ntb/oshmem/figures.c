/* Measures put, get, atomics, barriers and reductions of any OpenSHMEM 1.4 library. Prints one line for each case:
 *
 *   OPERATION BYTES NANOSECONDS
 *
 * The time is that of one operation in the fastest repeat, because other programs of the machine only add time. Each
 * repeat runs for at least the given time.
 * Puts and atomics without a result end with one quiet for each repeat. The line "checked" says that a put and a get
 * of the largest size arrived unaltered.
 *
 *   figures [MILLISECONDS [LARGEST [FIRST]]]      sizes from FIRST (8) to LARGEST (64 MiB) */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define REPEATS 20

static long pSync[SHMEM_REDUCE_SYNC_SIZE];
static long *work, word, rounds;
static char *remote, *local;
static int me, pes, other;
static double target;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

enum operation { PUT, GET, FETCH_ADD, ADD, BARRIER, SUM };
static const char *names[] = {"put", "get", "fetch_add", "add", "barrier", "sum"};

static void run(enum operation operation, size_t bytes, long count) {
    switch (operation) {
    case PUT:
        for (long i = 0; i < count; i++) shmem_putmem(remote, local, bytes, other);
        shmem_quiet();
        break;
    case GET:
        for (long i = 0; i < count; i++) shmem_getmem(local, remote, bytes, other);
        break;
    case FETCH_ADD:
        for (long i = 0; i < count; i++) shmem_long_atomic_fetch_add(&word, 1, other);
        break;
    case ADD:
        for (long i = 0; i < count; i++) shmem_long_atomic_add(&word, 1, other);
        shmem_quiet();
        break;
    case BARRIER:
        for (long i = 0; i < count; i++) shmem_barrier_all();
        break;
    case SUM:
        for (long i = 0; i < count; i++) {
            shmem_long_sum_to_all((long *)remote, (long *)(remote + bytes), bytes / 8, 0, 0, pes, work, pSync);
            shmem_barrier_all();
        }
        break;
    }
}

/* Is the operation carried out by all PEs, or by PE 0 alone while the others wait in a barrier? */
static int by_all(enum operation operation) { return operation == BARRIER || operation == SUM; }

static void measure(enum operation operation, size_t bytes) {
    double least = 1e9;
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
        double time = (now() - begun) / count;
        least = time < least ? time : least;
    }
    shmem_barrier_all();
    if (me == 0) {
        printf("%s %zu %.2f\n", names[operation], bytes, least * 1e9);
        fflush(stdout);
    }
}

/* Puts or gets bytes that have not been there before, and compares them. */
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
    return wrong;
}

int main(int argc, char **argv) {
    target = (argc > 1 ? atof(argv[1]) : 10) * 1e-3;
    size_t largest = argc > 2 ? strtoul(argv[2], NULL, 0) : 64 << 20;
    size_t first = argc > 3 ? strtoul(argv[3], NULL, 0) : 8;
    shmem_init();
    me = shmem_my_pe(), pes = shmem_n_pes(), other = (me + 1) % pes;
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) pSync[i] = SHMEM_SYNC_VALUE;
    /* Both buffers begin at a page in every library. Otherwise the distance between them modulo 4096 would differ, and
     * copies stall if a load follows a store to the same offset of another page. */
    remote = shmem_align(4096, 2 * largest);
    work = shmem_malloc(largest + 8 * SHMEM_REDUCE_MIN_WRKDATA_SIZE);
    local = aligned_alloc(4096, (largest + 4095) / 4096 * 4096);
    if (!remote || !work || !local) return fprintf(stderr, "no memory\n"), 2;
    memset(remote, 0, 2 * largest);
    memset(local, 1, largest);
    measure(BARRIER, 0);
    measure(FETCH_ADD, 8);
    measure(ADD, 8);
    for (size_t bytes = first; bytes <= largest; bytes *= 2) {
        measure(PUT, bytes);
        measure(GET, bytes);
        if (bytes <= 1 << 20) measure(SUM, bytes);
    }
    int wrong = check(largest);
    shmem_barrier_all();
    if (me == 0 && !wrong) printf("checked %zu 0\n", largest), fflush(stdout);
    shmem_barrier_all();
    shmem_finalize();
    if (wrong) fprintf(stderr, "PE %d got wrong bytes\n", me);
    return wrong;
}
