/* Measures round trips of a word that threads on several cores pass on, as programs and engines that poll do.
 *
 *   cc -O2 -pthread -o relay bench/offload/relay.c && ./relay SECONDS WORK_NS CORE CORE...
 *
 * The word goes from the first core to the last and back. Each thread polls for it, works for WORK_NS, and passes it on
 * through a cache line of its own. Nothing else happens: no system call, no packet, no sleep. So the difference between
 * the median and the 99th percentile is what the machine adds: interrupts, and other users of its processors. Compare it
 * with a round trip of `speed`: the cores of its client, its engines and its server, and the WORK_NS that gives its median. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST 16
#define SAMPLES 4000000

static struct {
    _Alignas(128) _Atomic uint64_t word;
} forward[MOST], back[MOST];
static int cores[MOST], count;
static uint64_t work_ns, seconds;
static _Atomic int end;
static uint32_t times[SAMPLES];

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void work(void)
{
    uint64_t start = now_ns();
    while (now_ns() - start < work_ns)
        ;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

/* Waits until the word has the given value. Returns 0 at the end of the measurement. */
static int await(_Atomic uint64_t *word, uint64_t value)
{
    while (atomic_load_explicit(word, memory_order_acquire) != value)
        if (atomic_load_explicit(&end, memory_order_relaxed))
            return 0;
    return 1;
}

static void *relay(void *argument)
{
    int place = (int)(intptr_t)argument;
    pin(cores[place]);
    for (uint64_t value = 1; await(&forward[place].word, value); value++) {
        work();
        if (place < count - 1) {
            atomic_store_explicit(&forward[place + 1].word, value, memory_order_release);
            if (!await(&back[place].word, value))
                break;
            work();
        }
        atomic_store_explicit(&back[place - 1].word, value, memory_order_release);
    }
    return NULL;
}

static int compare(const void *one, const void *two)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)two;
    return (a > b) - (a < b);
}

int main(int arguments, char **values)
{
    pthread_t ids[MOST];
    count = arguments - 3;
    if (count < 2 || count > MOST) {
        fprintf(stderr, "usage: relay SECONDS WORK_NS CORE CORE... (2 to %d cores)\n", MOST);
        return 2;
    }
    seconds = strtoull(values[1], NULL, 10);
    work_ns = strtoull(values[2], NULL, 10);
    for (int i = 0; i < count; i++)
        cores[i] = atoi(values[3 + i]);
    for (int i = 1; i < count; i++)
        if (pthread_create(&ids[i], NULL, relay, (void *)(intptr_t)i) != 0) {
            perror("pthread_create");
            return 1;
        }
    pin(cores[0]);
    uint64_t begin = now_ns(), samples = 0;
    for (uint64_t value = 1; samples < SAMPLES; value++) {
        uint64_t start = now_ns();
        if (start - begin > seconds * 1000000000)
            break;
        work();
        atomic_store_explicit(&forward[1].word, value, memory_order_release);
        await(&back[0].word, value);
        times[samples++] = (uint32_t)(now_ns() - start);
    }
    atomic_store(&end, 1);
    for (int i = 1; i < count; i++)
        pthread_join(ids[i], NULL);
    qsort(times, samples, sizeof *times, compare);
    printf("%llu round trips, us: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  longest %.1f\n", (unsigned long long)samples,
           times[samples / 2] / 1e3, times[samples * 90 / 100] / 1e3, times[samples * 99 / 100] / 1e3,
           times[samples * 999 / 1000] / 1e3, times[samples - 1] / 1e3);
    return 0;
}
