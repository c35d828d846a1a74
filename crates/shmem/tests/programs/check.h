/* Checks a condition and counts the failures. A program returns `wrong` from main. */
#include <shmem.h>
#include <stdio.h>

static int wrong;

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "PE %d line %d: %s\n", shmem_my_pe(), __LINE__, #condition); \
            wrong++;                                                                     \
        }                                                                                \
    } while (0)
