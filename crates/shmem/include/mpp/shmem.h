/* The header's place in programs for OpenSHMEM before 1.0. */
#include "../shmem.h"
