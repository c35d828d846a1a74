/* Counts how often, and for how long, a thread that never sleeps does not run.
 *
 *   cc -O2 -pthread -o pauses bench/offload/pauses.c && ./pauses SECONDS CORE...
 *
 * A thread on each of the cores reads the clock without pause. If two readings are 2 us or more apart, the kernel or the
 * hypervisor has used the core meanwhile: a timer interrupt, another task, or another virtual machine. Prints a line for
 * each core: pauses a second of at least 2, 5, 10, 20 and 50 us, and their share of the time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const uint64_t limits[] = {2000, 5000, 10000, 20000, 50000};
#define LIMITS (sizeof limits / sizeof *limits)
#define MOST 64

struct thread {
    int core;
    uint64_t run_ns, counts[LIMITS], paused_ns;
};

static uint64_t seconds;

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void *run(void *argument)
{
    struct thread *thread = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(thread->core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
    uint64_t start = now_ns(), last = start;
    while (last - start < seconds * 1000000000) {
        uint64_t now = now_ns(), gap = now - last;
        for (unsigned i = 0; i < LIMITS && gap >= limits[i]; i++)
            thread->counts[i]++;
        if (gap >= limits[0])
            thread->paused_ns += gap;
        last = now;
    }
    thread->run_ns = last - start;
    return NULL;
}

int main(int count, char **arguments)
{
    struct thread threads[MOST] = {0};
    pthread_t ids[MOST];
    int cores = count - 2;
    if (cores < 1 || cores > MOST || (seconds = atoi(arguments[1])) == 0) {
        fprintf(stderr, "usage: pauses SECONDS CORE...\n");
        return 2;
    }
    for (int i = 0; i < cores; i++) {
        threads[i].core = atoi(arguments[i + 2]);
        if (pthread_create(&ids[i], NULL, run, &threads[i]) != 0) {
            perror("pthread_create");
            return 1;
        }
    }
    printf("core  pauses a second of at least 2 us     5 us    10 us    20 us    50 us   share of the time\n");
    for (int i = 0; i < cores; i++) {
        pthread_join(ids[i], NULL);
        printf("%4d                         ", threads[i].core);
        for (unsigned k = 0; k < LIMITS; k++)
            printf(" %8.1f", threads[i].counts[k] * 1e9 / threads[i].run_ns);
        printf(" %14.3f %%\n", 100.0 * threads[i].paused_ns / threads[i].run_ns);
    }
    return 0;
}
