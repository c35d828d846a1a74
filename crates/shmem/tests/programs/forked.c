/* Checks that forked children can access the static objects and the heap of their parent, and that the other
 * PEs reach the parent's memory afterwards. */
#include "check.h"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static long statics[1000]; /* more than a page */

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), next = (me + 1) % shmem_n_pes();
    int before = (me + shmem_n_pes() - 1) % shmem_n_pes();
    long *heap = shmem_malloc(sizeof statics);

    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < 1000; i++) statics[i] = heap[i] = -1;
        shmem_barrier_all();
        pid_t child = fork();
        if (child == 0) {
            int wrong = 0;
            for (int i = 0; i < 1000; i++) wrong += statics[i] != -1 || heap[i] != -1;
            for (int i = 0; i < 1000; i++) statics[i] = 7;
            if (round % 3 == 0) shmem_finalize();
            if (round % 3 == 1) _exit(wrong != 0);
            exit(wrong != 0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        shmem_barrier_all();
        long mine[1000];
        for (int i = 0; i < 1000; i++) mine[i] = me * 1000 + i + round;
        shmem_long_put(statics, mine, 1000, next);
        shmem_long_put(heap, mine, 1000, next);
        shmem_barrier_all();
        int bad = 0;
        for (int i = 0; i < 1000; i++) bad += statics[i] != before * 1000 + i + round || heap[i] != statics[i];
        CHECK(bad == 0);
        shmem_barrier_all();
    }
    shmem_finalize();
    return wrong;
}
