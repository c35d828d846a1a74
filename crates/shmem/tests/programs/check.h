/* Checks a condition and counts the failures. A program returns `wrong` from main. */
#include <shmem.h>
#include <stdio.h>
#include <unistd.h>

static int wrong;

/* Ends the job with signal 14 unless the program calls this again within two minutes. Call it after each step, because on a
 * busy machine a whole program may take longer. */
static inline void progress(void) {
    alarm(120);
}

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "PE %d line %d: %s\n", shmem_my_pe(), __LINE__, #condition); \
            wrong++;                                                                     \
        }                                                                                \
    } while (0)
