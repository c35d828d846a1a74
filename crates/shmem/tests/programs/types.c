/* Every type through the type-generic macros of C11: put, get, and the reductions by type. */
#include "check.h"
#include <complex.h>

#if OSHMEM_SPEC_VERSION != 10500 || SHMEM_MAJOR_VERSION != 1 || SHMEM_MINOR_VERSION != 5
#error "the version is 1.5"
#endif

static int me, n, right, left;

/* Copies and collectives, for all RMA types. `type` may name the same C type twice, such as long and int64_t. */
#define COPIES(type)                                                              \
    do {                                                                          \
        static type to[64], from[64];                                             \
        for (int i = 0; i < 64; i++) from[i] = (type)(me + i % 8);                \
        shmem_barrier_all();                                                      \
        shmem_put(to, from, 3, right);                                            \
        shmem_p(&to[3], from[5], right);                                          \
        shmem_put_nbi(SHMEM_CTX_DEFAULT, &to[4], &from[1], 2, right);             \
        shmem_iput(&to[8], from, 2, 3, 2, right);                                 \
        shmem_barrier_all();                                                      \
        CHECK(to[0] == (type)left && to[2] == (type)(left + 2));                  \
        CHECK(to[3] == (type)(left + 5) && to[5] == (type)(left + 2));            \
        CHECK(to[8] == (type)left && to[10] == (type)(left + 3) && to[9] == 0);   \
        CHECK(shmem_g(&from[1], right) == (type)(right + 1));                     \
        CHECK(shmem_g(SHMEM_CTX_DEFAULT, &from[2], right) == (type)(right + 2));  \
        type back[4] = {0};                                                       \
        shmem_get(back, from, 2, right);                                          \
        shmem_get_nbi(back + 2, from, 1, right);                                  \
        shmem_iget(back + 3, &from[4], 1, 1, 1, right);                           \
        shmem_quiet();                                                            \
        CHECK(back[1] == (type)(right + 1) && back[2] == (type)right);            \
        CHECK(back[3] == (type)(right + 4));                                      \
        shmem_barrier_all();                                                      \
        CHECK(shmem_broadcast(SHMEM_TEAM_WORLD, to, from, 1, 0) == 0);            \
        CHECK(to[0] == (type)0);                                                  \
        shmem_barrier_all();                                                      \
        CHECK(shmem_fcollect(SHMEM_TEAM_WORLD, to, from, 1) == 0);                \
        CHECK(to[n - 1] == (type)(n - 1));                                        \
        shmem_barrier_all();                                                      \
        CHECK(shmem_alltoall(SHMEM_TEAM_WORLD, to, from, 1) == 0);                \
        CHECK(to[0] == (type)me && to[n - 1] == (type)(n - 1 + me));              \
        shmem_barrier_all();                                                      \
    } while (0)

#define SUMS(type)                                                                \
    do {                                                                          \
        static type to[2], from[2];                                               \
        from[0] = (type)(me + 1);                                                 \
        from[1] = (type)2;                                                        \
        shmem_barrier_all();                                                      \
        CHECK(shmem_sum_reduce(SHMEM_TEAM_WORLD, to, from, 2) == 0);              \
        CHECK(to[0] == (type)(n * (n + 1) / 2) && to[1] == (type)(2 * n));        \
        shmem_barrier_all();                                                      \
        CHECK(shmem_prod_reduce(SHMEM_TEAM_WORLD, to, from, 2) == 0);             \
        CHECK(to[1] == (type)(1 << n));                                           \
        shmem_barrier_all();                                                      \
    } while (0)

#define ORDER(type)                                                               \
    do {                                                                          \
        static type to[1], from[1];                                               \
        from[0] = (type)((me + 1) % n);                                           \
        shmem_barrier_all();                                                      \
        CHECK(shmem_max_reduce(SHMEM_TEAM_WORLD, to, from, 1) == 0);              \
        CHECK(to[0] == (type)(n - 1));                                            \
        shmem_barrier_all();                                                      \
        CHECK(shmem_min_reduce(SHMEM_TEAM_WORLD, to, from, 1) == 0);              \
        CHECK(to[0] == (type)0);                                                  \
        shmem_barrier_all();                                                      \
    } while (0)

#define LOGIC(type)                                                               \
    do {                                                                          \
        static type to[1], from[1];                                               \
        from[0] = (type)(1 << me);                                                \
        shmem_barrier_all();                                                      \
        CHECK(shmem_or_reduce(SHMEM_TEAM_WORLD, to, from, 1) == 0);               \
        CHECK(to[0] == (type)((1 << n) - 1));                                     \
        shmem_barrier_all();                                                      \
        CHECK(shmem_xor_reduce(SHMEM_TEAM_WORLD, to, from, 1) == 0);              \
        CHECK(to[0] == (type)((1 << n) - 1));                                     \
        shmem_barrier_all();                                                      \
        CHECK(shmem_and_reduce(SHMEM_TEAM_WORLD, to, from, 1) == 0);              \
        CHECK(to[0] == (type)(n == 1));                                           \
        shmem_barrier_all();                                                      \
    } while (0)

#define ATOMICS(type)                                                             \
    do {                                                                          \
        static type word;                                                         \
        shmem_barrier_all();                                                      \
        shmem_atomic_inc(&word, 0);                                               \
        shmem_atomic_add(SHMEM_CTX_DEFAULT, &word, 1, 0);                         \
        shmem_barrier_all();                                                      \
        CHECK(shmem_atomic_fetch(&word, 0) == (type)(2 * n));                     \
        shmem_barrier_all();                                                      \
        shmem_atomic_set(&word, (type)7, right);                                  \
        shmem_wait_until(&word, SHMEM_CMP_EQ, (type)7);                           \
        CHECK(shmem_test(&word, SHMEM_CMP_EQ, (type)7));                          \
        shmem_barrier_all();                                                      \
        CHECK(shmem_atomic_swap(&word, (type)8, right) == (type)7);               \
        CHECK(shmem_atomic_compare_swap(&word, (type)8, (type)9, right) == (type)8); \
        CHECK(shmem_atomic_fetch_add(&word, (type)1, right) == (type)9);          \
        CHECK(shmem_atomic_fetch_inc(&word, right) == (type)10);                  \
        shmem_barrier_all();                                                      \
    } while (0)

int main(void) {
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    right = (me + 1) % n;
    left = (me + n - 1) % n;
    COPIES(float); COPIES(double); COPIES(long double); COPIES(char); COPIES(signed char);
    COPIES(short); COPIES(int); COPIES(long); COPIES(long long); COPIES(unsigned char);
    COPIES(unsigned short); COPIES(unsigned int); COPIES(unsigned long); COPIES(unsigned long long);
    COPIES(int8_t); COPIES(uint64_t); COPIES(size_t); COPIES(ptrdiff_t);
    SUMS(float); SUMS(double); SUMS(long double); SUMS(char); SUMS(signed char); SUMS(short); SUMS(int);
    SUMS(long); SUMS(long long); SUMS(unsigned char); SUMS(unsigned short); SUMS(unsigned int);
    SUMS(unsigned long); SUMS(unsigned long long); SUMS(float _Complex); SUMS(double _Complex);
    ORDER(float); ORDER(double); ORDER(long double); ORDER(char); ORDER(signed char); ORDER(short); ORDER(int);
    ORDER(long); ORDER(long long); ORDER(unsigned char); ORDER(unsigned short); ORDER(unsigned int);
    ORDER(unsigned long); ORDER(unsigned long long);
    LOGIC(unsigned char); LOGIC(unsigned short); LOGIC(unsigned int); LOGIC(unsigned long);
    LOGIC(unsigned long long); LOGIC(int8_t); LOGIC(int16_t); LOGIC(int32_t); LOGIC(int64_t);
    ATOMICS(int); ATOMICS(long); ATOMICS(long long); ATOMICS(unsigned int); ATOMICS(unsigned long);
    ATOMICS(unsigned long long);
    CHECK(shmem_sync(SHMEM_TEAM_WORLD) == 0);
    static long psync[SHMEM_SYNC_SIZE];
    shmem_sync(0, 0, n, psync);
    shmem_finalize();
    return wrong;
}
