/* Contexts of three PEs over TCP. PE 1 is stopped while an operation of a context on its memory is unfinished. The other
 * contexts must not wait for it. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { LONGS = 1 << 17, THREADS = 4, ROUNDS = 200 };
static long word, process, counts[THREADS];
static uint64_t signal_word;

/* A quiet of one context completes the operations of this context only. */
static void stopped(long *heap) {
    int me = shmem_my_pe();
    long *copy = malloc(LONGS * sizeof(long));
    shmem_ctx_t one, other;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &one) == 0 && shmem_ctx_create(SHMEM_CTX_SERIALIZED, &other) == 0);
    if (me == 1) process = getpid();
    for (int i = 0; i < LONGS; i++) heap[i] = me * 1000000L + i;
    shmem_barrier_all();
    if (me == 0) {
        long number = shmem_long_g(&process, 1);
        /* Connect the contexts before PE 1 stops. */
        shmem_ctx_long_get(one, copy, heap, 1, 1);
        shmem_ctx_long_get(other, copy, heap, 1, 2);
        kill((pid_t)number, SIGSTOP);
        shmem_ctx_long_get_nbi(one, copy, heap, LONGS, 1);
        shmem_ctx_long_p(other, &word, 7, 2);
        shmem_ctx_fence(other);
        shmem_ctx_long_atomic_inc(other, &word, 2);
        shmem_ctx_quiet(other);
        CHECK(shmem_ctx_long_g(other, &word, 2) == 8);
        kill((pid_t)number, SIGCONT);
        shmem_ctx_quiet(one);
        for (int i = 0; i < LONGS; i++) CHECK(copy[i] == 1000000L + i);
    }
    shmem_barrier_all();
    shmem_ctx_destroy(one);
    shmem_ctx_destroy(other);
    free(copy);
}

/* Puts of a context arrive although their PE completes none of them: it waits for the answer through the default context. */
static void unquiet(long *heap) {
    int me = shmem_my_pe(), next = (me + 1) % shmem_n_pes();
    long *source = malloc(LONGS * sizeof(long));
    shmem_ctx_t context;
    CHECK(shmem_ctx_create(0, &context) == 0);
    for (int i = 0; i < LONGS; i++) source[i] = me + i * 3L;
    shmem_barrier_all();
    shmem_ctx_long_put_nbi(context, heap, source, LONGS, next);
    shmem_ctx_fence(context);
    shmem_ctx_long_put_signal(context, heap, source, 8, &signal_word, 1, SHMEM_SIGNAL_SET, next);
    shmem_signal_wait_until(&signal_word, SHMEM_CMP_EQ, 1);
    int before = (me + shmem_n_pes() - 1) % shmem_n_pes();
    for (int i = 0; i < LONGS; i++) CHECK(heap[i] == before + i * 3L);
    shmem_ctx_quiet(context);
    shmem_barrier_all();
    shmem_ctx_destroy(context);
    free(source);
}

/* A barrier completes the operations of all contexts. */
static void barriers(void) {
    int me = shmem_my_pe(), n = shmem_n_pes(), before = (me + n - 1) % n;
    shmem_ctx_t contexts[20];
    for (int i = 0; i < 20; i++) {
        CHECK(shmem_ctx_create(0, &contexts[i]) == 0);
        progress();
        shmem_ctx_long_p(contexts[i], &word, 100L * i + me, (me + 1) % n);
        shmem_barrier_all();
        CHECK(word == 100L * i + before);
        shmem_barrier_all();
    }
    for (int i = 0; i < 20; i++) shmem_ctx_destroy(contexts[i]);
    word = 0;
    shmem_barrier_all();
}

static void *work(void *argument) {
    int thread = (int)(long)argument, me = shmem_my_pe(), n = shmem_n_pes();
    shmem_ctx_t context;
    CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &context) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        long fetched = -1, before;
        progress();
        shmem_ctx_long_atomic_inc(context, &counts[thread], (me + i) % n);
        shmem_ctx_long_atomic_fetch_add_nbi(context, &before, &counts[thread], 1000000, (me + i) % n);
        shmem_ctx_long_get_nbi(context, &fetched, &counts[thread], 1, (me + i) % n);
        shmem_ctx_quiet(context);
        CHECK(fetched > 0 && before >= 0);
    }
    /* The last thread leaves its context to shmem_finalize. */
    if (thread < THREADS - 1) shmem_ctx_destroy(context);
    return NULL;
}

int main(void) {
    int provided;
    progress();
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    long *heap = shmem_malloc(LONGS * sizeof(long));
    if (shmem_n_pes() > 2) stopped(heap);
    unquiet(heap);
    barriers();
    for (int round = 1; round < 3; round++) {
        pthread_t threads[THREADS];
        for (long thread = 0; thread < THREADS; thread++) pthread_create(&threads[thread], NULL, work, (void *)thread);
        for (int thread = 0; thread < THREADS; thread++) pthread_join(threads[thread], NULL);
        shmem_barrier_all();
        for (int thread = 0; thread < THREADS; thread++) CHECK(counts[thread] == 1000001L * ROUNDS * round);
        shmem_barrier_all();
    }
    /* More contexts than workers. shmem_finalize completes their operations. */
    int me = shmem_my_pe(), n = shmem_n_pes();
    for (int i = 0; i < 100; i++) {
        shmem_ctx_t context;
        CHECK(shmem_ctx_create(0, &context) == 0);
        shmem_ctx_long_atomic_inc(context, &word, 0);
    }
    shmem_finalize();
    if (me == 0) CHECK(word == 100 * n);
    return wrong;
}
