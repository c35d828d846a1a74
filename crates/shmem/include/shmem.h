/* shmem.h: OpenSHMEM for C over inlane's windows.
 *
 * A subset of OpenSHMEM 1.5, with the names that 1.4 deprecates:
 *   set-up, symmetric heap, static symmetric objects, put and get (typed, sized, memory, strided, single,
 *   non-blocking), atomics, signals, ordering, waits, locks, and collectives over active sets and over
 *   SHMEM_TEAM_WORLD.
 * Not supported yet: contexts, other teams, vector waits.
 *
 * A PE (processing element) is one process of a job. Symmetric memory (the heap and static objects) exists on
 * every PE. A function takes the address of this PE's copy and the number of a PE, and acts on that PE's copy.
 * Most functions return no error. If one fails, the library prints the error and ends the job.
 *
 * Build:  cc program.c -I<include> -L<lib> -linlane_shmem
 * Start:  inlane ntb run -n 4 -- ./program
 */
#ifndef INLANE_SHMEM_H
#define INLANE_SHMEM_H

#include <stddef.h>
#include <stdint.h>
#ifndef __cplusplus
#include <complex.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 5
#define SHMEM_MAX_NAME_LEN 256
#define SHMEM_VENDOR_STRING "inlane"

#define SHMEM_THREAD_SINGLE 0
#define SHMEM_THREAD_FUNNELED 1
#define SHMEM_THREAD_SERIALIZED 2
#define SHMEM_THREAD_MULTIPLE 3

#define SHMEM_CMP_EQ 0
#define SHMEM_CMP_NE 1
#define SHMEM_CMP_GT 2
#define SHMEM_CMP_GE 3
#define SHMEM_CMP_LT 4
#define SHMEM_CMP_LE 5

#define SHMEM_SIGNAL_SET 0
#define SHMEM_SIGNAL_ADD 1

/* Sizes of the work arrays (pSync, pWrk) of collectives over active sets. The library accepts these arrays
 * but does not use them. */
#define SHMEM_SYNC_VALUE 0L
#define SHMEM_SYNC_SIZE 1
#define SHMEM_BARRIER_SYNC_SIZE 1
#define SHMEM_BCAST_SYNC_SIZE 1
#define SHMEM_COLLECT_SYNC_SIZE 1
#define SHMEM_ALLTOALL_SYNC_SIZE 1
#define SHMEM_REDUCE_SYNC_SIZE 1
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1
#define _SHMEM_SYNC_VALUE SHMEM_SYNC_VALUE
#define _SHMEM_BARRIER_SYNC_SIZE SHMEM_BARRIER_SYNC_SIZE
#define _SHMEM_BCAST_SYNC_SIZE SHMEM_BCAST_SYNC_SIZE
#define _SHMEM_COLLECT_SYNC_SIZE SHMEM_COLLECT_SYNC_SIZE
#define _SHMEM_REDUCE_SYNC_SIZE SHMEM_REDUCE_SYNC_SIZE
#define _SHMEM_REDUCE_MIN_WRKDATA_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE
#define _SHMEM_CMP_EQ SHMEM_CMP_EQ
#define _SHMEM_CMP_NE SHMEM_CMP_NE
#define _SHMEM_CMP_GT SHMEM_CMP_GT
#define _SHMEM_CMP_GE SHMEM_CMP_GE
#define _SHMEM_CMP_LT SHMEM_CMP_LT
#define _SHMEM_CMP_LE SHMEM_CMP_LE

typedef int shmem_team_t;
#define SHMEM_TEAM_INVALID (-1)
#define SHMEM_TEAM_WORLD 0

/* ---- set-up and memory --------------------------------------------------------------------------------- */

/* shmem_init starts the library, and shmem_finalize ends it. All PEs must call both. */
void shmem_init(void);
void shmem_finalize(void);
/* Ends all PEs of the job with this status. */
void shmem_global_exit(int status);
int shmem_my_pe(void);
int shmem_n_pes(void);
/* shmem_pe_accessible returns 1 if the PE exists, else 0. shmem_addr_accessible returns 1 if the PE exists
 * and the address lies in symmetric memory, else 0. */
int shmem_pe_accessible(int pe);
int shmem_addr_accessible(const void *address, int pe);
/* Returns the address at which loads and stores reach the PE's copy of the object, or NULL if they cannot. */
void *shmem_ptr(const void *destination, int pe);
void shmem_info_get_version(int *major, int *minor);
void shmem_info_get_name(char *name);

static inline int shmem_init_thread(int requested, int *provided) {
    shmem_init();
    (void)requested;
    *provided = SHMEM_THREAD_MULTIPLE;
    return 0;
}
static inline void shmem_query_thread(int *provided) { *provided = SHMEM_THREAD_MULTIPLE; }
static inline int shmem_team_my_pe(shmem_team_t team) { return team == SHMEM_TEAM_WORLD ? shmem_my_pe() : -1; }
static inline int shmem_team_n_pes(shmem_team_t team) { return team == SHMEM_TEAM_WORLD ? shmem_n_pes() : -1; }

/* Allocate and free symmetric memory. All PEs must make the same calls in the same order. The functions
 * return NULL if the heap is full. */
void *shmem_malloc(size_t size);
void *shmem_calloc(size_t count, size_t size);
void *shmem_realloc(void *address, size_t size);
void *shmem_align(size_t alignment, size_t size);
void shmem_free(void *address);

/* Names from versions of OpenSHMEM before 1.2. */
static inline void start_pes(int pes) { (void)pes; shmem_init(); }
static inline int _my_pe(void) { return shmem_my_pe(); }
static inline int _num_pes(void) { return shmem_n_pes(); }
static inline void *shmalloc(size_t size) { return shmem_malloc(size); }
static inline void *shrealloc(void *address, size_t size) { return shmem_realloc(address, size); }
static inline void *shmemalign(size_t alignment, size_t size) { return shmem_align(alignment, size); }
static inline void shfree(void *address) { shmem_free(address); }

/* ---- put and get --------------------------------------------------------------------------------------- */

/* A put returns when its source may be reused. A get returns when its bytes have arrived. The source of a
 * put_nbi stays in use until the next shmem_quiet. */
void shmem_putmem(void *destination, const void *source, size_t bytes, int pe);
void shmem_getmem(void *destination, const void *source, size_t bytes, int pe);
void shmem_putmem_nbi(void *destination, const void *source, size_t bytes, int pe);
void shmem_getmem_nbi(void *destination, const void *source, size_t bytes, int pe);
/* Puts the bytes, then sets or adds to the signal. The PE that sees the signal also sees the bytes. */
void shmem_putmem_signal(void *destination, const void *source, size_t bytes, uint64_t *signal_address, uint64_t signal,
                         int operation, int pe);
static inline void shmem_putmem_signal_nbi(void *destination, const void *source, size_t bytes,
                                           uint64_t *signal_address, uint64_t signal, int operation, int pe) {
    shmem_putmem_signal(destination, source, bytes, signal_address, signal, operation, pe);
}

#define INLANE_SHMEM_SIZED(bits, bytes)                                                                                \
    static inline void shmem_put##bits(void *d, const void *s, size_t n, int pe) { shmem_putmem(d, s, n * (bytes), pe); } \
    static inline void shmem_get##bits(void *d, const void *s, size_t n, int pe) { shmem_getmem(d, s, n * (bytes), pe); } \
    static inline void shmem_put##bits##_nbi(void *d, const void *s, size_t n, int pe) {                              \
        shmem_putmem_nbi(d, s, n * (bytes), pe);                                                                       \
    }                                                                                                                  \
    static inline void shmem_get##bits##_nbi(void *d, const void *s, size_t n, int pe) {                              \
        shmem_getmem_nbi(d, s, n * (bytes), pe);                                                                       \
    }                                                                                                                  \
    static inline void shmem_iput##bits(void *d, const void *s, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {      \
        for (size_t i = 0; i < n; i++)                                                                                 \
            shmem_putmem((char *)d + (ptrdiff_t)i * dst * (bytes), (const char *)s + (ptrdiff_t)i * sst * (bytes),     \
                         (bytes), pe);                                                                                 \
    }                                                                                                                  \
    static inline void shmem_iget##bits(void *d, const void *s, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {      \
        for (size_t i = 0; i < n; i++)                                                                                 \
            shmem_getmem((char *)d + (ptrdiff_t)i * dst * (bytes), (const char *)s + (ptrdiff_t)i * sst * (bytes),     \
                         (bytes), pe);                                                                                 \
    }
INLANE_SHMEM_SIZED(8, 1)
INLANE_SHMEM_SIZED(16, 2)
INLANE_SHMEM_SIZED(32, 4)
INLANE_SHMEM_SIZED(64, 8)
INLANE_SHMEM_SIZED(128, 16)

#define INLANE_SHMEM_RMA(name, type)                                                                                   \
    static inline void shmem_##name##_put(type *d, const type *s, size_t n, int pe) {                                  \
        shmem_putmem(d, s, n * sizeof(type), pe);                                                                      \
    }                                                                                                                  \
    static inline void shmem_##name##_get(type *d, const type *s, size_t n, int pe) {                                  \
        shmem_getmem(d, s, n * sizeof(type), pe);                                                                      \
    }                                                                                                                  \
    static inline void shmem_##name##_put_nbi(type *d, const type *s, size_t n, int pe) {                              \
        shmem_putmem_nbi(d, s, n * sizeof(type), pe);                                                                  \
    }                                                                                                                  \
    static inline void shmem_##name##_get_nbi(type *d, const type *s, size_t n, int pe) {                              \
        shmem_getmem_nbi(d, s, n * sizeof(type), pe);                                                                  \
    }                                                                                                                  \
    static inline void shmem_##name##_p(type *d, type v, int pe) { shmem_putmem(d, &v, sizeof v, pe); }                \
    static inline type shmem_##name##_g(const type *s, int pe) {                                                       \
        type v;                                                                                                        \
        shmem_getmem(&v, s, sizeof v, pe);                                                                             \
        return v;                                                                                                      \
    }                                                                                                                  \
    static inline void shmem_##name##_iput(type *d, const type *s, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {   \
        for (size_t i = 0; i < n; i++) shmem_putmem(d + (ptrdiff_t)i * dst, s + (ptrdiff_t)i * sst, sizeof(type), pe); \
    }                                                                                                                  \
    static inline void shmem_##name##_iget(type *d, const type *s, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {   \
        for (size_t i = 0; i < n; i++) shmem_getmem(d + (ptrdiff_t)i * dst, s + (ptrdiff_t)i * sst, sizeof(type), pe); \
    }                                                                                                                  \
    static inline void shmem_##name##_put_signal(type *d, const type *s, size_t n, uint64_t *a, uint64_t v, int op,    \
                                                 int pe) {                                                             \
        shmem_putmem_signal(d, s, n * sizeof(type), a, v, op, pe);                                                     \
    }                                                                                                                  \
    static inline void shmem_##name##_put_signal_nbi(type *d, const type *s, size_t n, uint64_t *a, uint64_t v,        \
                                                     int op, int pe) {                                                 \
        shmem_putmem_signal(d, s, n * sizeof(type), a, v, op, pe);                                                     \
    }
INLANE_SHMEM_RMA(float, float)
INLANE_SHMEM_RMA(double, double)
INLANE_SHMEM_RMA(longdouble, long double)
INLANE_SHMEM_RMA(char, char)
INLANE_SHMEM_RMA(schar, signed char)
INLANE_SHMEM_RMA(short, short)
INLANE_SHMEM_RMA(int, int)
INLANE_SHMEM_RMA(long, long)
INLANE_SHMEM_RMA(longlong, long long)
INLANE_SHMEM_RMA(uchar, unsigned char)
INLANE_SHMEM_RMA(ushort, unsigned short)
INLANE_SHMEM_RMA(uint, unsigned int)
INLANE_SHMEM_RMA(ulong, unsigned long)
INLANE_SHMEM_RMA(ulonglong, unsigned long long)
INLANE_SHMEM_RMA(int8, int8_t)
INLANE_SHMEM_RMA(int16, int16_t)
INLANE_SHMEM_RMA(int32, int32_t)
INLANE_SHMEM_RMA(int64, int64_t)
INLANE_SHMEM_RMA(uint8, uint8_t)
INLANE_SHMEM_RMA(uint16, uint16_t)
INLANE_SHMEM_RMA(uint32, uint32_t)
INLANE_SHMEM_RMA(uint64, uint64_t)
INLANE_SHMEM_RMA(size, size_t)
INLANE_SHMEM_RMA(ptrdiff, ptrdiff_t)

/* ---- ordering ------------------------------------------------------------------------------------------ */

/* Orders this PE's puts and atomics: those before the call arrive at each PE before all later ones to that
 * PE. */
void shmem_fence(void);
/* Waits until all puts and atomics of this PE are delivered. */
void shmem_quiet(void);

/* ---- atomics, carried out by the owner ----------------------------------------------------------------- */

uint64_t inlane_shmem_atomic(int operation, const void *target, size_t width, uint64_t operand, uint64_t comparand,
                             int pe);
void inlane_shmem_atomic_nbi(int operation, void *target, size_t width, uint64_t operand, int pe);
enum {
    INLANE_SHMEM_FETCH,
    INLANE_SHMEM_SWAP,
    INLANE_SHMEM_CSWAP,
    INLANE_SHMEM_ADD,
    INLANE_SHMEM_AND,
    INLANE_SHMEM_OR,
    INLANE_SHMEM_XOR
};

/* Atomics for every type of 4 or 8 bytes, floating point included: fetch, set and swap. */
#define INLANE_SHMEM_AMO_BITS(name, type)                                                                              \
    static inline uint64_t inlane_shmem_##name##_bits(type v) {                                                        \
        union {                                                                                                        \
            type v;                                                                                                    \
            uint64_t b;                                                                                                \
        } u;                                                                                                           \
        u.b = 0;                                                                                                       \
        u.v = v;                                                                                                       \
        return u.b;                                                                                                    \
    }                                                                                                                  \
    static inline type inlane_shmem_##name##_value(uint64_t b) {                                                       \
        union {                                                                                                        \
            type v;                                                                                                    \
            uint64_t b;                                                                                                \
        } u;                                                                                                           \
        u.b = b;                                                                                                       \
        return u.v;                                                                                                    \
    }                                                                                                                  \
    static inline type shmem_##name##_atomic_fetch(const type *t, int pe) {                                            \
        return inlane_shmem_##name##_value(inlane_shmem_atomic(INLANE_SHMEM_FETCH, t, sizeof *t, 0, 0, pe));           \
    }                                                                                                                  \
    static inline void shmem_##name##_atomic_set(type *t, type v, int pe) {                                            \
        inlane_shmem_atomic_nbi(INLANE_SHMEM_SWAP, t, sizeof *t, inlane_shmem_##name##_bits(v), pe);                   \
    }                                                                                                                  \
    static inline type shmem_##name##_atomic_swap(type *t, type v, int pe) {                                           \
        return inlane_shmem_##name##_value(                                                                            \
            inlane_shmem_atomic(INLANE_SHMEM_SWAP, t, sizeof *t, inlane_shmem_##name##_bits(v), 0, pe));               \
    }                                                                                                                  \
    static inline type shmem_##name##_fetch(const type *t, int pe) { return shmem_##name##_atomic_fetch(t, pe); }      \
    static inline void shmem_##name##_set(type *t, type v, int pe) { shmem_##name##_atomic_set(t, v, pe); }            \
    static inline type shmem_##name##_swap(type *t, type v, int pe) { return shmem_##name##_atomic_swap(t, v, pe); }

#define INLANE_SHMEM_AMO(name, type)                                                                                   \
    INLANE_SHMEM_AMO_BITS(name, type)                                                                                  \
    static inline type shmem_##name##_atomic_compare_swap(type *t, type c, type v, int pe) {                           \
        return (type)inlane_shmem_atomic(INLANE_SHMEM_CSWAP, t, sizeof *t, (uint64_t)v, (uint64_t)c, pe);              \
    }                                                                                                                  \
    static inline type shmem_##name##_atomic_fetch_add(type *t, type v, int pe) {                                      \
        return (type)inlane_shmem_atomic(INLANE_SHMEM_ADD, t, sizeof *t, (uint64_t)v, 0, pe);                          \
    }                                                                                                                  \
    static inline void shmem_##name##_atomic_add(type *t, type v, int pe) {                                            \
        inlane_shmem_atomic_nbi(INLANE_SHMEM_ADD, t, sizeof *t, (uint64_t)v, pe);                                      \
    }                                                                                                                  \
    static inline type shmem_##name##_atomic_fetch_inc(type *t, int pe) {                                              \
        return shmem_##name##_atomic_fetch_add(t, 1, pe);                                                              \
    }                                                                                                                  \
    static inline void shmem_##name##_atomic_inc(type *t, int pe) { shmem_##name##_atomic_add(t, 1, pe); }             \
    static inline type shmem_##name##_cswap(type *t, type c, type v, int pe) {                                         \
        return shmem_##name##_atomic_compare_swap(t, c, v, pe);                                                        \
    }                                                                                                                  \
    static inline type shmem_##name##_fadd(type *t, type v, int pe) { return shmem_##name##_atomic_fetch_add(t, v, pe); } \
    static inline void shmem_##name##_add(type *t, type v, int pe) { shmem_##name##_atomic_add(t, v, pe); }            \
    static inline type shmem_##name##_finc(type *t, int pe) { return shmem_##name##_atomic_fetch_inc(t, pe); }         \
    static inline void shmem_##name##_inc(type *t, int pe) { shmem_##name##_atomic_inc(t, pe); }
INLANE_SHMEM_AMO(int, int)
INLANE_SHMEM_AMO(long, long)
INLANE_SHMEM_AMO(longlong, long long)
INLANE_SHMEM_AMO(uint, unsigned int)
INLANE_SHMEM_AMO(ulong, unsigned long)
INLANE_SHMEM_AMO(ulonglong, unsigned long long)
INLANE_SHMEM_AMO(int32, int32_t)
INLANE_SHMEM_AMO(int64, int64_t)
INLANE_SHMEM_AMO(uint32, uint32_t)
INLANE_SHMEM_AMO(uint64, uint64_t)
INLANE_SHMEM_AMO(size, size_t)
INLANE_SHMEM_AMO(ptrdiff, ptrdiff_t)
INLANE_SHMEM_AMO_BITS(float, float)
INLANE_SHMEM_AMO_BITS(double, double)

#define INLANE_SHMEM_BITWISE_OP(name, type, op, code)                                                                  \
    static inline void shmem_##name##_atomic_##op(type *t, type v, int pe) {                                           \
        inlane_shmem_atomic_nbi(code, t, sizeof *t, (uint64_t)v, pe);                                                  \
    }                                                                                                                  \
    static inline type shmem_##name##_atomic_fetch_##op(type *t, type v, int pe) {                                     \
        return (type)inlane_shmem_atomic(code, t, sizeof *t, (uint64_t)v, 0, pe);                                      \
    }
#ifdef __cplusplus
/* `and`, `or` and `xor` are operators in C++, so the bitwise atomics exist in C only. */
#define INLANE_SHMEM_BITWISE(name, type)
#else
#define INLANE_SHMEM_BITWISE(name, type)                                                                               \
    INLANE_SHMEM_BITWISE_OP(name, type, and, INLANE_SHMEM_AND)                                                         \
    INLANE_SHMEM_BITWISE_OP(name, type, or, INLANE_SHMEM_OR)                                                           \
    INLANE_SHMEM_BITWISE_OP(name, type, xor, INLANE_SHMEM_XOR)
#endif
INLANE_SHMEM_BITWISE(uint, unsigned int)
INLANE_SHMEM_BITWISE(ulong, unsigned long)
INLANE_SHMEM_BITWISE(ulonglong, unsigned long long)
INLANE_SHMEM_BITWISE(int32, int32_t)
INLANE_SHMEM_BITWISE(int64, int64_t)
INLANE_SHMEM_BITWISE(uint32, uint32_t)
INLANE_SHMEM_BITWISE(uint64, uint64_t)

/* ---- waits --------------------------------------------------------------------------------------------- */

/* Both functions compare the integer at `word` with the value by `how` (SHMEM_CMP_...). inlane_shmem_wait
 * blocks until the comparison is true, and returns the integer. inlane_shmem_test returns 1 if it is true
 * now, else 0. */
uint64_t inlane_shmem_wait(const void *word, size_t width, int is_signed, int how, uint64_t value);
int inlane_shmem_test(const void *word, size_t width, int is_signed, int how, uint64_t value);

#define INLANE_SHMEM_WAIT(name, type)                                                                                  \
    static inline void shmem_##name##_wait_until(const volatile type *w, int how, type v) {                            \
        inlane_shmem_wait((const void *)w, sizeof *w, (type)-1 < (type)1, how, (uint64_t)v);                           \
    }                                                                                                                  \
    static inline int shmem_##name##_test(const volatile type *w, int how, type v) {                                   \
        return inlane_shmem_test((const void *)w, sizeof *w, (type)-1 < (type)1, how, (uint64_t)v);                    \
    }                                                                                                                  \
    static inline void shmem_##name##_wait(const volatile type *w, type v) {                                           \
        shmem_##name##_wait_until(w, SHMEM_CMP_NE, v);                                                                 \
    }
INLANE_SHMEM_WAIT(short, short)
INLANE_SHMEM_WAIT(int, int)
INLANE_SHMEM_WAIT(long, long)
INLANE_SHMEM_WAIT(longlong, long long)
INLANE_SHMEM_WAIT(ushort, unsigned short)
INLANE_SHMEM_WAIT(uint, unsigned int)
INLANE_SHMEM_WAIT(ulong, unsigned long)
INLANE_SHMEM_WAIT(ulonglong, unsigned long long)
INLANE_SHMEM_WAIT(int32, int32_t)
INLANE_SHMEM_WAIT(int64, int64_t)
INLANE_SHMEM_WAIT(uint32, uint32_t)
INLANE_SHMEM_WAIT(uint64, uint64_t)
INLANE_SHMEM_WAIT(size, size_t)
INLANE_SHMEM_WAIT(ptrdiff, ptrdiff_t)
static inline void shmem_wait_until(const volatile long *w, int how, long v) { shmem_long_wait_until(w, how, v); }
static inline void shmem_wait(const volatile long *w, long v) { shmem_long_wait(w, v); }

static inline uint64_t shmem_signal_fetch(const uint64_t *w) { return *(const volatile uint64_t *)w; }
static inline uint64_t shmem_signal_wait_until(uint64_t *w, int how, uint64_t v) {
    return inlane_shmem_wait(w, sizeof *w, 0, how, v);
}

/* Locks. PEs get a lock in the order in which they ask for it. shmem_test_lock sets the lock if it is free.
 * It returns 0 if this PE holds the lock afterwards, else 1. */
void shmem_set_lock(long *lock);
void shmem_clear_lock(long *lock);
int shmem_test_lock(long *lock);

/* ---- collectives --------------------------------------------------------------------------------------- */

void shmem_barrier_all(void);
void shmem_sync_all(void);
void shmem_barrier(int pe_start, int log_stride, int pe_size, long *psync);
void inlane_shmem_broadcast(void *d, const void *s, size_t bytes, int root, int start, int log_stride, int size);
void inlane_shmem_collect(void *d, const void *s, size_t bytes, int same, int start, int log_stride, int size);
void inlane_shmem_alltoall(void *d, const void *s, size_t bytes, int start, int log_stride, int size);
void inlane_shmem_reduce(void *d, const void *s, size_t count, size_t width,
                         void (*combine)(void *, const void *, size_t), int start, int log_stride, int size);

static inline int shmem_team_sync(shmem_team_t team) {
    if (team != SHMEM_TEAM_WORLD) return -1;
    shmem_sync_all();
    return 0;
}

#define INLANE_SHMEM_COLLECTIVES(bits, bytes)                                                                          \
    static inline void shmem_broadcast##bits(void *d, const void *s, size_t n, int root, int start, int log_stride,    \
                                             int size, long *psync) {                                                  \
        (void)psync;                                                                                                   \
        inlane_shmem_broadcast(d, s, n * (bytes), root, start, log_stride, size);                                      \
    }                                                                                                                  \
    static inline void shmem_collect##bits(void *d, const void *s, size_t n, int start, int log_stride, int size,      \
                                           long *psync) {                                                              \
        (void)psync;                                                                                                   \
        inlane_shmem_collect(d, s, n * (bytes), 0, start, log_stride, size);                                           \
    }                                                                                                                  \
    static inline void shmem_fcollect##bits(void *d, const void *s, size_t n, int start, int log_stride, int size,     \
                                            long *psync) {                                                             \
        (void)psync;                                                                                                   \
        inlane_shmem_collect(d, s, n * (bytes), 1, start, log_stride, size);                                           \
    }                                                                                                                  \
    static inline void shmem_alltoall##bits(void *d, const void *s, size_t n, int start, int log_stride, int size,     \
                                            long *psync) {                                                             \
        (void)psync;                                                                                                   \
        inlane_shmem_alltoall(d, s, n * (bytes), start, log_stride, size);                                             \
    }
INLANE_SHMEM_COLLECTIVES(32, 4)
INLANE_SHMEM_COLLECTIVES(64, 8)

/* Collectives over SHMEM_TEAM_WORLD, in the form of OpenSHMEM 1.5. A broadcast also writes the root's own
 * destination. Each function returns -1 for other teams. */
#define INLANE_SHMEM_TEAM_COLLECTIVES(name, type)                                                                      \
    static inline int shmem_##name##_broadcast(shmem_team_t team, type *d, const type *s, size_t n, int root) {        \
        if (team != SHMEM_TEAM_WORLD) return -1;                                                                       \
        if (shmem_my_pe() == root)                                                                                     \
            for (size_t i = 0; d != s && i < n; i++) d[i] = s[i];                                                      \
        inlane_shmem_broadcast(d, s, n * sizeof(type), root, 0, 0, shmem_n_pes());                                     \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static inline int shmem_##name##_collect(shmem_team_t team, type *d, const type *s, size_t n) {                    \
        if (team != SHMEM_TEAM_WORLD) return -1;                                                                       \
        inlane_shmem_collect(d, s, n * sizeof(type), 0, 0, 0, shmem_n_pes());                                          \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static inline int shmem_##name##_fcollect(shmem_team_t team, type *d, const type *s, size_t n) {                   \
        if (team != SHMEM_TEAM_WORLD) return -1;                                                                       \
        inlane_shmem_collect(d, s, n * sizeof(type), 1, 0, 0, shmem_n_pes());                                          \
        return 0;                                                                                                      \
    }                                                                                                                  \
    static inline int shmem_##name##_alltoall(shmem_team_t team, type *d, const type *s, size_t n) {                   \
        if (team != SHMEM_TEAM_WORLD) return -1;                                                                       \
        inlane_shmem_alltoall(d, s, n * sizeof(type), 0, 0, shmem_n_pes());                                            \
        return 0;                                                                                                      \
    }
INLANE_SHMEM_TEAM_COLLECTIVES(float, float)
INLANE_SHMEM_TEAM_COLLECTIVES(double, double)
INLANE_SHMEM_TEAM_COLLECTIVES(longdouble, long double)
INLANE_SHMEM_TEAM_COLLECTIVES(char, char)
INLANE_SHMEM_TEAM_COLLECTIVES(schar, signed char)
INLANE_SHMEM_TEAM_COLLECTIVES(short, short)
INLANE_SHMEM_TEAM_COLLECTIVES(int, int)
INLANE_SHMEM_TEAM_COLLECTIVES(long, long)
INLANE_SHMEM_TEAM_COLLECTIVES(longlong, long long)
INLANE_SHMEM_TEAM_COLLECTIVES(uchar, unsigned char)
INLANE_SHMEM_TEAM_COLLECTIVES(ushort, unsigned short)
INLANE_SHMEM_TEAM_COLLECTIVES(uint, unsigned int)
INLANE_SHMEM_TEAM_COLLECTIVES(ulong, unsigned long)
INLANE_SHMEM_TEAM_COLLECTIVES(ulonglong, unsigned long long)
INLANE_SHMEM_TEAM_COLLECTIVES(int32, int32_t)
INLANE_SHMEM_TEAM_COLLECTIVES(int64, int64_t)
INLANE_SHMEM_TEAM_COLLECTIVES(uint32, uint32_t)
INLANE_SHMEM_TEAM_COLLECTIVES(uint64, uint64_t)
INLANE_SHMEM_TEAM_COLLECTIVES(size, size_t)
INLANE_SHMEM_TEAM_COLLECTIVES(ptrdiff, ptrdiff_t)

#define INLANE_SHMEM_REDUCTION(name, type, op, expression)                                                             \
    static inline void inlane_shmem_##name##_##op(void *sum, const void *other, size_t n) {                            \
        type *x = (type *)sum;                                                                                         \
        const type *y = (const type *)other;                                                                           \
        for (size_t i = 0; i < n; i++) {                                                                               \
            type a = x[i], b = y[i];                                                                                   \
            x[i] = (type)(expression);                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    static inline void shmem_##name##_##op##_to_all(type *d, const type *s, int n, int start, int log_stride,          \
                                                    int size, type *pwrk, long *psync) {                               \
        (void)pwrk;                                                                                                    \
        (void)psync;                                                                                                   \
        inlane_shmem_reduce(d, s, n > 0 ? (size_t)n : 0, sizeof(type), inlane_shmem_##name##_##op, start, log_stride,  \
                            size);                                                                                     \
    }                                                                                                                  \
    static inline int shmem_##name##_##op##_reduce(shmem_team_t team, type *d, const type *s, size_t n) {              \
        if (team != SHMEM_TEAM_WORLD) return -1;                                                                       \
        inlane_shmem_reduce(d, s, n, sizeof(type), inlane_shmem_##name##_##op, 0, 0, shmem_n_pes());                   \
        return 0;                                                                                                      \
    }
#define INLANE_SHMEM_ARITHMETIC(name, type)                                                                            \
    INLANE_SHMEM_REDUCTION(name, type, sum, a + b)                                                                     \
    INLANE_SHMEM_REDUCTION(name, type, prod, a *b)
#define INLANE_SHMEM_ORDERED(name, type)                                                                               \
    INLANE_SHMEM_ARITHMETIC(name, type)                                                                                \
    INLANE_SHMEM_REDUCTION(name, type, min, b < a ? b : a)                                                             \
    INLANE_SHMEM_REDUCTION(name, type, max, b > a ? b : a)
#ifdef __cplusplus
#define INLANE_SHMEM_INTEGER(name, type) INLANE_SHMEM_ORDERED(name, type)
#else
#define INLANE_SHMEM_INTEGER(name, type)                                                                               \
    INLANE_SHMEM_ORDERED(name, type)                                                                                   \
    INLANE_SHMEM_REDUCTION(name, type, and, a &b)                                                                      \
    INLANE_SHMEM_REDUCTION(name, type, or, a | b)                                                                      \
    INLANE_SHMEM_REDUCTION(name, type, xor, a ^ b)
#endif
INLANE_SHMEM_INTEGER(short, short)
INLANE_SHMEM_INTEGER(int, int)
INLANE_SHMEM_INTEGER(long, long)
INLANE_SHMEM_INTEGER(longlong, long long)
INLANE_SHMEM_INTEGER(uchar, unsigned char)
INLANE_SHMEM_INTEGER(ushort, unsigned short)
INLANE_SHMEM_INTEGER(uint, unsigned int)
INLANE_SHMEM_INTEGER(ulong, unsigned long)
INLANE_SHMEM_INTEGER(ulonglong, unsigned long long)
INLANE_SHMEM_INTEGER(int32, int32_t)
INLANE_SHMEM_INTEGER(int64, int64_t)
INLANE_SHMEM_INTEGER(uint32, uint32_t)
INLANE_SHMEM_INTEGER(uint64, uint64_t)
INLANE_SHMEM_INTEGER(size, size_t)
INLANE_SHMEM_ORDERED(float, float)
INLANE_SHMEM_ORDERED(double, double)
INLANE_SHMEM_ORDERED(longdouble, long double)
#ifndef __cplusplus
INLANE_SHMEM_ARITHMETIC(complexf, float _Complex)
INLANE_SHMEM_ARITHMETIC(complexd, double _Complex)
#endif

#ifdef __cplusplus
}
#endif

#endif
