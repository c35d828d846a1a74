/* Waits and tests on several words, signals of every size, non-blocking atomics, and allocations (OpenSHMEM 1.5,
 * sections 9.3, 9.7, 9.8 and 9.10). */
#include "check.h"
#include <limits.h>
#include <string.h>

static int flags[64];
static long words[8];
static uint64_t signal;
static char bytes[256], sources[256];

static void vectors(void) {
    int me = shmem_my_pe(), n = shmem_n_pes(), status[64] = {0};
    size_t indices[64], count;

    /* Each PE sets its flag everywhere. */
    for (int pe = 0; pe < n; pe++) shmem_int_p(&flags[me], me + 1, pe);
    shmem_int_wait_until_all(flags, n, NULL, SHMEM_CMP_GT, 0);
    for (int pe = 0; pe < n; pe++) CHECK(flags[pe] == pe + 1);
    int expected[64];
    for (int pe = 0; pe < n; pe++) expected[pe] = pe + 1;
    shmem_int_wait_until_all_vector(flags, n, NULL, SHMEM_CMP_EQ, expected);
    CHECK(shmem_int_test_all(flags, n, NULL, SHMEM_CMP_NE, 0) == 1);
    CHECK(shmem_int_test_all(flags, n, NULL, SHMEM_CMP_LT, 1) == 0);
    CHECK(shmem_int_test_all_vector(flags, n, NULL, SHMEM_CMP_EQ, expected) == 1);
    CHECK(shmem_int_test(flags, SHMEM_CMP_EQ, 1) == 1 && shmem_int_test(flags, SHMEM_CMP_EQ, 2) == 0);

    CHECK(shmem_int_wait_until_any(flags, n, NULL, SHMEM_CMP_EQ, n) == (size_t)n - 1);
    CHECK(shmem_int_test_any(flags, n, NULL, SHMEM_CMP_EQ, n + 1) == SIZE_MAX);
    expected[0] = -1;
    size_t any = shmem_int_wait_until_any_vector(flags, n, NULL, n > 1 ? SHMEM_CMP_EQ : SHMEM_CMP_NE, expected);
    CHECK(n > 1 ? any > 0 && any < (size_t)n : any == 0);
    CHECK(shmem_int_test_any_vector(flags, 1, NULL, SHMEM_CMP_EQ, expected) == SIZE_MAX);

    count = shmem_int_wait_until_some(flags, n, indices, NULL, SHMEM_CMP_GE, 1);
    CHECK(count == (size_t)n && indices[n - 1] == (size_t)n - 1);
    count = shmem_int_test_some(flags, n, indices, NULL, SHMEM_CMP_LE, 1);
    CHECK(count == 1 && indices[0] == 0);
    count = shmem_int_test_some_vector(flags, n, indices, NULL, SHMEM_CMP_EQ, expected);
    CHECK(count == (size_t)n - 1 && (n == 1 || indices[0] == 1));
    count = shmem_int_wait_until_some_vector(flags, n, indices, NULL, SHMEM_CMP_NE, expected);
    CHECK(count == 1 && indices[0] == 0);

    /* Repeated tests find each word, though the first one always satisfies the comparison. */
    int found[64] = {0};
    for (int left = n; left > 0;) {
        size_t index = shmem_int_test_any(flags, n, NULL, SHMEM_CMP_GE, 1);
        CHECK(index < (size_t)n);
        left -= !found[index];
        found[index] = 1;
    }

    /* A status other than 0 excludes a word. Without any word, nothing waits. */
    status[0] = 1;
    CHECK(shmem_int_test_any(flags, n, status, SHMEM_CMP_EQ, 1) == SIZE_MAX);
    CHECK(shmem_int_test_some(flags, n, indices, status, SHMEM_CMP_EQ, 1) == 0);
    for (int pe = 0; pe < n; pe++) status[pe] = 2;
    shmem_int_wait_until_all(flags, n, status, SHMEM_CMP_EQ, -5);
    CHECK(shmem_int_wait_until_any(flags, n, status, SHMEM_CMP_EQ, -5) == SIZE_MAX);
    CHECK(shmem_int_wait_until_some(flags, n, indices, status, SHMEM_CMP_EQ, -5) == 0);
    CHECK(shmem_int_test_all(flags, n, status, SHMEM_CMP_EQ, -5) == 1);
    CHECK(shmem_int_wait_until_any(flags, 0, NULL, SHMEM_CMP_EQ, -5) == SIZE_MAX);

    /* Comparisons follow the type's sign. */
    static short narrow = -1;
    static unsigned short wide = 0xffff;
    CHECK(shmem_short_test(&narrow, SHMEM_CMP_LT, 0) && shmem_ushort_test(&wide, SHMEM_CMP_GT, 1));
}

static void signals(void) {
    int me = shmem_my_pe(), n = shmem_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n;
    uint64_t sent = 0;
    for (int i = 0; i < 256; i++) sources[i] = (char)(me + i);
    shmem_barrier_all();
#define SIZED(bits)                                                                                          \
    shmem_put##bits##_signal(bytes, sources, 3, &signal, 1, SHMEM_SIGNAL_ADD, right);                        \
    sent++;                                                                                                  \
    CHECK(shmem_signal_wait_until(&signal, SHMEM_CMP_EQ, sent) == sent);                                     \
    CHECK(bytes[0] == (char)left && bytes[3 * bits / 8 - 1] == (char)(left + 3 * bits / 8 - 1));             \
    shmem_barrier_all();                                                                                     \
    shmem_put##bits##_signal_nbi(bytes + 64, sources, 2, &signal, ++sent, SHMEM_SIGNAL_SET, right);          \
    CHECK(shmem_signal_wait_until(&signal, SHMEM_CMP_GE, sent) == sent && shmem_signal_fetch(&signal) == sent); \
    CHECK(bytes[64 + 2 * bits / 8 - 1] == (char)(left + 2 * bits / 8 - 1));                                  \
    shmem_barrier_all();
    SIZED(8)
    SIZED(16)
    SIZED(32)
    SIZED(64)
    SIZED(128)
    shmem_ctx_putmem_signal(SHMEM_CTX_DEFAULT, bytes, sources + 9, 1, &signal, 1, SHMEM_SIGNAL_ADD, right);
    shmem_signal_wait_until(&signal, SHMEM_CMP_EQ, ++sent);
    CHECK(bytes[0] == (char)(left + 9));
    shmem_barrier_all();
}

static void atomics(void) {
    int me = shmem_my_pe(), n = shmem_n_pes();
    static unsigned bits = 0xf0;
    static float real = 1.5f;
    static long counter;
    long before[3] = {-1, -1, -1};
    shmem_barrier_all();
    shmem_long_atomic_fetch_add_nbi(&before[0], &words[0], 5, 0);
    shmem_long_atomic_fetch_inc_nbi(&before[1], &words[1], 0);
    shmem_quiet();
    CHECK(before[0] >= 0 && before[0] % 5 == 0 && before[0] < 5 * n && before[1] >= 0 && before[1] < n);
    shmem_barrier_all();
    shmem_long_atomic_fetch_nbi(&before[2], &words[0], 0);
    shmem_quiet();
    CHECK(before[2] == 5 * n);
    shmem_barrier_all();
    /* Each PE works on its own copy. */
    float old;
    shmem_float_atomic_swap_nbi(&old, &real, 2.5f, me);
    shmem_quiet();
    CHECK(old == 1.5f && shmem_float_atomic_fetch(&real, me) == 2.5f);
    long swapped;
    shmem_long_atomic_compare_swap_nbi(&swapped, &counter, 0, -9, me);
    shmem_quiet();
    CHECK(swapped == 0 && shmem_long_atomic_compare_swap(&counter, 0, 1, me) == -9 && counter == -9);
    unsigned was;
    shmem_uint_atomic_fetch_and_nbi(&was, &bits, 0x3c, me);
    shmem_quiet();
    CHECK(was == 0xf0);
    shmem_uint_atomic_fetch_or_nbi(&was, &bits, 0x01, me);
    shmem_quiet();
    CHECK(was == 0x30);
    shmem_uint_atomic_fetch_xor_nbi(&was, &bits, 0x11, me);
    shmem_quiet();
    CHECK(was == 0x31 && shmem_uint_atomic_fetch(&bits, me) == 0x20);
    CHECK(shmem_uint_atomic_fetch_xor(&bits, 0x20, me) == 0x20 && bits == 0);
    shmem_barrier_all();
}

static void memory(void) {
    long *array = shmem_malloc_with_hints(4 * sizeof *array, SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE);
    CHECK(array != NULL && shmem_addr_accessible(array, 0));
    shmem_free(array);
    CHECK(shmem_malloc(0) == NULL);
    shmem_free(NULL);
    array = shmem_align(4096, 8);
    CHECK(array && (uintptr_t)array % 4096 == 0);
    shmem_free(array);
    array = shmem_align(2 << 20, 8);
    CHECK(array && (uintptr_t)array % (2 << 20) == 0);
    shmem_free(array);
    array = shmem_align(48, 8); /* rounded up to a power of two */
    CHECK(array && (uintptr_t)array % 64 == 0);
    shmem_free(array);
    CHECK(shmem_align(0, 8) == NULL);

    /* Most of the heap, which has 64 MiB: it has no room for a copy. */
    char *large = shmem_malloc(40 << 20);
    CHECK(large != NULL);
    large[0] = 1;
    large[(30 << 20) - 1] = 2;
    large = shmem_realloc(large, 30 << 20);
    CHECK(large && large[0] == 1 && large[(30 << 20) - 1] == 2);
    char *rest = shmem_malloc(30 << 20);
    CHECK(rest != NULL);
    shmem_free(rest);
    shmem_free(large);
    shmem_pcontrol(0);
    shmem_pcontrol(2, "anything", 3.0);
}

int main(void) {
    int level = -1, major = 0, minor = 0;
    CHECK(shmem_init_thread(SHMEM_THREAD_MULTIPLE, &level) == 0 && level == SHMEM_THREAD_MULTIPLE);
    shmem_info_get_version(&major, &minor);
    CHECK(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION);
    vectors();
    signals();
    atomics();
    memory();
    shmem_finalize();
    return wrong;
}
