/* Checks that a wait for a signal returns the value that ended the wait, even if the word changes at once.
 * Also checks the library's name and forked children. */
#include <pthread.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t word;
static int arrived; /* at PE 0 */
static volatile int stop;

static void *toggle(void *unused) {
    while (!stop) {
        *(volatile uint64_t *)&word = 5;
        *(volatile uint64_t *)&word = 6;
    }
    return unused;
}

int main(void) {
    int wrong = 0;
    shmem_init();

    pthread_t thread;
    pthread_create(&thread, NULL, toggle, NULL);
    for (int i = 0; i < 20000; i++) wrong += shmem_signal_wait_until(&word, SHMEM_CMP_EQ, 5) != 5;
    stop = 1;
    pthread_join(thread, NULL);
    if (wrong) fprintf(stderr, "%d of 20000 waits returned another value\n", wrong);

    char name[SHMEM_MAX_NAME_LEN];
    shmem_info_get_name(name);
    wrong += strcmp(name, SHMEM_VENDOR_STRING) != 0;

    /* A forked child that exits or finalizes is no PE, so the barriers of its parent must still work. */
    for (int round = 1; round <= 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            if (round % 2) shmem_finalize();
            exit(0);
        }
        int status;
        wrong += waitpid(child, &status, 0) != child || status != 0;
        shmem_int_atomic_inc(&arrived, 0);
        shmem_barrier_all();
        wrong += shmem_int_g(&arrived, 0) != round * shmem_n_pes();
        shmem_barrier_all();
    }
    shmem_finalize();
    return wrong != 0;
}
