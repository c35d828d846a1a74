/* A program may start any number of operations without a quiet. PE 0 starts many of each kind, while a thread stops
 * PE 1's process most of the time. PE 0's memory must not grow with the number of operations. PE 1's memory is not
 * checked: its answers wait until PE 0 receives them, and the job has small receive buffers. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 30000, MOST_KILOBYTES = 4 << 10 };

static long number, values[8], fetched;
static char bytes[512], sources[512];
static uint64_t signals;
static int other_process;
static volatile int posting = 1;

static void *slow_down_other(void *nothing) {
    while (posting) {
        kill(other_process, SIGSTOP);
        usleep(20000);
        kill(other_process, SIGCONT);
        usleep(10000);
    }
    return nothing;
}

/* Returns the physical memory of this process in kilobytes. */
static long resident(void) {
    char line[200];
    long kilobytes = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmRSS:", 6)) kilobytes = atol(line + 6);
    if (file) fclose(file);
    return kilobytes;
}

static void start(int kind, int pe) {
    switch (kind) {
    case 0: shmem_long_atomic_add(&number, 1, pe); break;
    case 1: shmem_long_put_nbi(&values[0], &values[1], 1, pe); break;
    case 2: shmem_long_get_nbi(&values[2], &values[3], 1, pe); break;
    case 3: shmem_long_atomic_fetch_add_nbi(&fetched, &number, 1, pe); break;
    case 4: shmem_putmem_signal_nbi(bytes, sources, sizeof bytes, &signals, 1, SHMEM_SIGNAL_ADD, pe); break;
    case 5: shmem_putmem_signal(bytes, sources, 8, &signals, 1, SHMEM_SIGNAL_ADD, pe); break;
    case 6: shmem_long_p(&values[4], 1, pe); break;
    }
}

int main(void) {
    int provided, own_process = getpid();
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    int me = shmem_my_pe();
    shmem_int_p(&other_process, own_process, 1 - me);
    for (int kind = 0; kind < 7; kind++) start(kind, 1 - me);
    shmem_barrier_all();
    number = signals = 0;
    shmem_barrier_all();
    if (other_process <= 0) return 2; /* kill would stop other processes, too */
    pthread_t thread;
    if (me == 0) pthread_create(&thread, NULL, slow_down_other, NULL);
    for (int kind = 0; kind < 7; kind++) {
        long before = resident();
        for (int i = 0; me == 0 && i < COUNT; i++) start(kind, 1);
        long grown = resident() - before;
        if (grown > MOST_KILOBYTES) printf("PE %d: operations of kind %d took %ld KiB\n", me, kind, grown);
        CHECK(before > 0 && (me != 0 || grown <= MOST_KILOBYTES));
        shmem_barrier_all();
    }
    posting = 0;
    if (me == 0) pthread_join(thread, NULL);
    if (me == 1) CHECK(number == 2 * COUNT && signals == 2 * COUNT);
    shmem_barrier_all();
    shmem_finalize();
    return wrong;
}
