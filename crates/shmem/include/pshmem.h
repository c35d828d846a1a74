/* pshmem.h: the profiling names of OpenSHMEM's functions, pshmem_*. A tool defines shmem_* functions that call
 * them, and is linked or preloaded before this library. */
#ifndef INLANE_PSHMEM_H
#define INLANE_PSHMEM_H

#include "shmem.h"

#ifdef __cplusplus
extern "C" {
#endif
#include "inlane/pshmem_functions.h"
#ifdef __cplusplus
}
#endif

#endif
