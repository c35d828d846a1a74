/* Calls the functions that programs use most, and checks every result. Exits with the number of
 * wrong results. */
#include <shmem.h>
#include <stdio.h>
#include <string.h>

static int in_bss[8];
static long in_data[4] = {1, 2, 3, 4};
int exported = 5;
static long psync[SHMEM_REDUCE_SYNC_SIZE];
static double pwrk[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static int wrong;

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "PE %d line %d: %s\n", shmem_my_pe(), __LINE__, #condition);        \
            wrong++;                                                                            \
        }                                                                                       \
    } while (0)

int main(void) {
    exported = 77; /* before shmem_init makes static objects symmetric */
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n;
    CHECK(exported == 77 && in_data[2] == 3);
    CHECK(shmem_addr_accessible(in_bss, right) && shmem_addr_accessible(in_data, right));
    int on_stack = 0;
    CHECK(!shmem_addr_accessible(&on_stack, right));
    shmem_barrier_all();

    shmem_int_p(&in_bss[1], me + 100, right);
    long values[4] = {me, me + 1, me + 2, me + 3};
    shmem_long_put(in_data, values, 4, right);
    shmem_barrier_all();
    CHECK(in_bss[1] == left + 100);
    CHECK(in_data[0] == left && in_data[3] == left + 3);
    CHECK(shmem_int_g(&in_bss[1], right) == me + 100);
    long back[2];
    shmem_iget64(back, in_data, 1, 2, 2, right);
    CHECK(back[0] == me && back[1] == me + 2);
    shmem_barrier_all();

    char *heap = shmem_malloc(1 << 20);
    uint64_t *signal = shmem_calloc(2, sizeof *signal);
    CHECK(heap && signal && signal[0] == 0 && signal[1] == 0);
    shmem_barrier_all();
    static char big[1 << 20];
    memset(big, me + 1, sizeof big);
    shmem_char_put_signal(heap, big, sizeof big, signal, 9, SHMEM_SIGNAL_SET, right);
    CHECK(shmem_signal_wait_until(signal, SHMEM_CMP_EQ, 9) == 9);
    CHECK(heap[0] == left + 1 && heap[(1 << 20) - 1] == left + 1);
    shmem_putmem_signal(heap, big, 8, signal + 1, 3, SHMEM_SIGNAL_ADD, right);
    shmem_uint64_wait_until(signal + 1, SHMEM_CMP_GE, 3);
    shmem_barrier_all();

    static int counter;
    static double real;
    static unsigned bits;
    for (int i = 0; i < 100; i++) shmem_int_atomic_inc(&counter, 0);
    shmem_barrier_all();
    CHECK(shmem_int_atomic_fetch(&counter, 0) == 100 * n);
    shmem_barrier_all();
    CHECK(shmem_int_finc(&counter, right) >= 0);
    shmem_uint_atomic_or(&bits, 1u << me, 0);
    shmem_barrier_all();
    CHECK(shmem_uint_atomic_fetch(&bits, 0) == (1u << n) - 1);
    shmem_double_atomic_set(&real, 1.5 + me, right);
    shmem_barrier_all();
    CHECK(real == 1.5 + left);
    shmem_barrier_all();
    CHECK(shmem_double_atomic_swap(&real, -1.0, right) == 1.5 + me);
    shmem_barrier_all();
    CHECK(shmem_int_cswap(&counter, -5, 1, me) != -5);
    static long lock;
    static int guarded;
    for (int i = 0; i < 20; i++) {
        shmem_set_lock(&lock);
        shmem_int_p(&guarded, shmem_int_g(&guarded, 0) + 1, 0);
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    CHECK(shmem_int_g(&guarded, 0) == 20 * n);

    static double sums[3], terms[3];
    for (int i = 0; i < 3; i++) terms[i] = me + i;
    shmem_barrier_all();
    shmem_double_sum_to_all(sums, terms, 3, 0, 0, n, pwrk, psync);
    CHECK(sums[2] == n * (n - 1) / 2.0 + 2.0 * n);
    shmem_barrier_all();
    shmem_double_max_reduce(SHMEM_TEAM_WORLD, sums, terms, 3);
    CHECK(sums[0] == n - 1 && sums[1] == n);
    static int all[64], mine[64];
    for (int i = 0; i < n; i++) mine[i] = me * 100 + i;
    shmem_barrier_all();
    shmem_fcollect32(all, mine, 1, 0, 0, n, psync);
    for (int i = 0; i < n; i++) CHECK(all[i] == i * 100);
    shmem_barrier_all();
    shmem_alltoall32(all, mine, 1, 0, 0, n, psync);
    for (int i = 0; i < n; i++) CHECK(all[i] == i * 100 + me);
    shmem_barrier_all();
    all[0] = -1;
    shmem_barrier_all();
    shmem_broadcast32(all, mine, 1, n - 1, 0, 0, n, psync);
    CHECK(me == n - 1 ? all[0] == -1 : all[0] == (n - 1) * 100);
    shmem_barrier_all();
    shmem_int_broadcast(SHMEM_TEAM_WORLD, all, mine, 1, 0);
    CHECK(all[0] == 0);

    int *direct = shmem_ptr(&in_bss[2], right);
    if (direct) *direct = 4242;
    shmem_barrier_all();
    CHECK(!direct || in_bss[2] == 4242);
    CHECK(shmem_malloc((size_t)1 << 50) == NULL);
    heap = shmem_realloc(heap, 2 << 20);
    CHECK(heap && heap[7] == left + 1);
    shmem_free(heap);
    shmem_free(signal);
    shmem_finalize();
    return wrong;
}
