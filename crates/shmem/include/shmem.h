/* shmem.h: OpenSHMEM 1.5 for C and C++ over inlane's transports.
 *
 * A PE (processing element) is one process of a job. Symmetric memory (the heap and static objects) exists on
 * every PE. A function takes the address of this PE's copy and the number of a PE, and acts on that PE's copy.
 * Most functions return no error. If one fails, the library prints the error and ends the job.
 *
 * Build:  oshcc program.c
 * Start:  oshrun -np 4 ./a.out
 */
#ifndef INLANE_SHMEM_H
#define INLANE_SHMEM_H

#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
#include <complex>
#endif

/* Programs may be compiled with -pedantic -Werror. The header needs long long, which C++98 lacks, and C's
 * complex types, which C++ lacks. */
#ifdef __GNUC__
#pragma GCC diagnostic push
#ifdef __clang__
#pragma GCC diagnostic ignored "-Wc99-extensions"
#ifdef __cplusplus
#pragma GCC diagnostic ignored "-Wc++11-long-long"
#endif
#endif
#pragma GCC diagnostic ignored "-Wlong-long"
#endif

/* C's complex types, which g++ and clang++ have too. */
#define INLANE_SHMEM_COMPLEX(type) type _Complex

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

/* Hints of shmem_malloc_with_hints. The library ignores them. */
#define SHMEM_MALLOC_ATOMICS_REMOTE (1L << 0)
#define SHMEM_MALLOC_SIGNAL_REMOTE (1L << 1)

/* A context groups operations of its team, for fence and quiet. */
typedef struct inlane_shmem_context { int unused; } *shmem_ctx_t;
#define SHMEM_CTX_INVALID ((shmem_ctx_t)0)
#define SHMEM_CTX_DEFAULT ((shmem_ctx_t)1)
#define SHMEM_CTX_SERIALIZED (1L << 0)
#define SHMEM_CTX_PRIVATE (1L << 1)
#define SHMEM_CTX_NOSTORE (1L << 2)

/* Hints for the operations of a context between shmem_ctx_session_start and shmem_ctx_session_stop (OpenSHMEM 1.6).
 * The library ignores them. */
typedef struct {
    size_t total_ops; /* the most calls that the program expects to make */
} shmem_ctx_session_config_t;
#define SHMEM_CTX_SESSION_TOTAL_OPS (1L << 0)
#define SHMEM_CTX_SESSION_BATCH (1L << 0)

/* A team is a set of PEs with equal distances. SHMEM_TEAM_SHARED has the PEs whose memory shmem_ptr reaches. */
typedef struct inlane_shmem_team { int unused; } *shmem_team_t;
#define SHMEM_TEAM_INVALID ((shmem_team_t)0)
#define SHMEM_TEAM_WORLD ((shmem_team_t)1)
#define SHMEM_TEAM_SHARED ((shmem_team_t)2)

typedef struct {
    int num_contexts; /* contexts that the program will create from the team */
} shmem_team_config_t;
#define SHMEM_TEAM_NUM_CONTEXTS (1L << 0)

/* Sizes of the work arrays (pSync, pWrk) of collectives over active sets. The library accepts these arrays
 * but does not use them. */
#define SHMEM_SYNC_VALUE 0L
#define SHMEM_SYNC_SIZE 1
#define SHMEM_BARRIER_SYNC_SIZE 1
#define SHMEM_BCAST_SYNC_SIZE 1
#define SHMEM_COLLECT_SYNC_SIZE 1
#define SHMEM_ALLTOALL_SYNC_SIZE 1
#define SHMEM_ALLTOALLS_SYNC_SIZE 1
#define SHMEM_REDUCE_SYNC_SIZE 1
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1

/* Deprecated names of constants. */
#define _SHMEM_MAJOR_VERSION SHMEM_MAJOR_VERSION
#define _SHMEM_MINOR_VERSION SHMEM_MINOR_VERSION
#define _SHMEM_MAX_NAME_LEN SHMEM_MAX_NAME_LEN
#define _SHMEM_VENDOR_STRING SHMEM_VENDOR_STRING
/* Open MPI's name of the version. Its examples do not compile without it. */
#define OSHMEM_SPEC_VERSION (SHMEM_MAJOR_VERSION * 10000 + SHMEM_MINOR_VERSION * 100)
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

#ifdef __cplusplus
extern "C" {
#endif
#include "inlane/shmem_functions.h"
#ifdef __cplusplus
}
#endif

/* shmem_put(dest, ...) and so on, for every type. In C, these macros need C11. */
#include "inlane/shmem_generics.h"

/* shmem_sync has one argument, a team, or the four of the deprecated function. */
#ifdef __cplusplus
static inline int shmem_sync(shmem_team_t team) { return shmem_team_sync(team); }

/* C++'s complex types have the layout of C's, so they share the functions. */
#define INLANE_SHMEM_OVERLOAD(name, type, op)                                                                          \
    static inline int shmem_##op##_reduce(shmem_team_t team, std::complex<type> *dest,                                 \
                                          const std::complex<type> *source, size_t nreduce) {                          \
        return shmem_##name##_##op##_reduce(team, reinterpret_cast<type _Complex *>(dest),                             \
                                            reinterpret_cast<const type _Complex *>(source), nreduce);                 \
    }                                                                                                                  \
    static inline int shmem_##name##_##op##_reduce(shmem_team_t team, std::complex<type> *dest,                        \
                                                   const std::complex<type> *source, size_t nreduce) {                 \
        return shmem_##op##_reduce(team, dest, source, nreduce);                                                       \
    }                                                                                                                  \
    static inline void shmem_##name##_##op##_to_all(std::complex<type> *dest, const std::complex<type> *source,        \
                                                    int nreduce, int PE_start, int logPE_stride, int PE_size,          \
                                                    std::complex<type> *pWrk, long *pSync) {                           \
        shmem_##name##_##op##_to_all(reinterpret_cast<type _Complex *>(dest),                                          \
                                     reinterpret_cast<const type _Complex *>(source), nreduce, PE_start, logPE_stride, \
                                     PE_size, reinterpret_cast<type _Complex *>(pWrk), pSync);                         \
    }
INLANE_SHMEM_OVERLOAD(complexf, float, sum)
INLANE_SHMEM_OVERLOAD(complexf, float, prod)
INLANE_SHMEM_OVERLOAD(complexd, double, sum)
INLANE_SHMEM_OVERLOAD(complexd, double, prod)
#undef INLANE_SHMEM_OVERLOAD
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define INLANE_SHMEM_SYNC(a, b, c, d, name, ...) name
#define shmem_sync(...) \
    INLANE_SHMEM_SYNC(__VA_ARGS__, shmem_sync, , , shmem_team_sync, )(__VA_ARGS__)
#endif

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

#endif
