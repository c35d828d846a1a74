/* PE 1 leaves at once: by shmem_finalize in a job of two PEs, else by its return from main. The argument names what the
   other PEs then do. */
#include <pthread.h>
#include <shmem.h>
#include <string.h>
#include <unistd.h>

static long word, lock, values[2], sums[2];

/* Changes the word later than the other PEs leave. */
static void *change(void *unused) {
    (void)unused;
    sleep(2);
    *(volatile long *)&word = 1;
    return NULL;
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "nothing";
    shmem_init();
    int me = shmem_my_pe(), pes = shmem_n_pes();
    shmem_team_t pair;
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 2, NULL, 0, &pair);
    if (me == 1) {
        if (strcmp(how, "lock") == 0) shmem_set_lock(&lock);
        if (pes == 2) shmem_finalize();
        return 0;
    }
    if (strcmp(how, "lock") == 0) {
        sleep(1);
        shmem_set_lock(&lock);
    }
    /* The last PE leaves, too, but later. */
    if (me == pes - 1 && me != 0) {
        if (strcmp(how, "late") == 0) {
            sleep(2);
            shmem_long_p(&word, 1, 0);
        }
        return 0;
    }
    pthread_t thread;
    if (strcmp(how, "thread") == 0) pthread_create(&thread, NULL, change, NULL);
    if (strcmp(how, "child") == 0 && fork() == 0) {
        change(NULL);
        _exit(0);
    }
    if (strcmp(how, "wait") == 0 || strcmp(how, "late") == 0 || strcmp(how, "thread") == 0 || strcmp(how, "child") == 0)
        shmem_long_wait_until(&word, SHMEM_CMP_EQ, 1);
    if (strcmp(how, "any") == 0) shmem_long_wait_until_any(&word, 1, NULL, SHMEM_CMP_EQ, 1);
    if (strcmp(how, "signal") == 0) shmem_signal_wait_until((uint64_t *)&word, SHMEM_CMP_EQ, 1);
    if (strcmp(how, "barrier") == 0) shmem_barrier_all();
    if (strcmp(how, "reduce") == 0) shmem_long_sum_reduce(SHMEM_TEAM_WORLD, sums, values, 2);
    if (strcmp(how, "broadcast") == 0) shmem_long_broadcast(SHMEM_TEAM_WORLD, sums, values, 2, 1);
    if (strcmp(how, "team") == 0) shmem_team_sync(pair);
    if (strcmp(how, "allocate") == 0) shmem_malloc(8);
    if (strcmp(how, "put") == 0) {
        sleep(1);
        for (int round = 0; round < 1000; round++) shmem_long_p(&values[0], round, 1);
        shmem_quiet();
        if (shmem_long_g(&values[0], 1) != 999 || shmem_long_atomic_fetch_inc(&values[1], 1) != 0) return 3;
    }
    return 0;
}
