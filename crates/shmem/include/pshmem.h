/* pshmem.h: the profiling names of OpenSHMEM's functions, pshmem_*. A tool defines shmem_* functions that call
 * them, and is linked or preloaded before this library. */
#ifndef INLANE_PSHMEM_H
#define INLANE_PSHMEM_H

#include "shmem.h"

/* For the reason, see shmem.h. */
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

#ifdef __cplusplus
extern "C" {
#endif
#include "inlane/pshmem_functions.h"
#ifdef __cplusplus
}
#endif

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

#endif
