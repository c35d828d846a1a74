/* C++: overloads, std::complex, the profiling names, and a shmem_ function that the program replaces. */
#include <cstdio>
#include <mpp/shmem.h>
#include <pshmem.h>

static long word, back;
static std::complex<float> sums[2], terms[2];
static int seen;

/* A profiling tool replaces a function and calls its profiling name. */
extern "C" void shmem_long_put(long *dest, const long *source, size_t nelems, int pe) {
    seen++;
    pshmem_long_put(dest, source, nelems, pe);
}

int main() {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n, wrong = 0;
    long value = me + 5;
    shmem_put(&word, &value, 1, right);
    shmem_barrier_all();
    wrong += word != left + 5 || seen != 1;
    shmem_get(SHMEM_CTX_DEFAULT, &back, &word, 1, right);
    wrong += back != me + 5 || shmem_g(&word, right) != me + 5 || pshmem_long_g(&word, right) != me + 5;
    terms[0] = std::complex<float>(me, 1);
    terms[1] = std::complex<float>(0, 1);
    shmem_barrier_all();
    wrong += shmem_sum_reduce(SHMEM_TEAM_WORLD, sums, terms, 2) != 0;
    wrong += sums[0] != std::complex<float>(n * (n - 1) / 2, n);
    shmem_sync(SHMEM_TEAM_WORLD);
    wrong += shmem_complexf_prod_reduce(SHMEM_TEAM_WORLD, sums, terms + 1, 1) != 0;
    std::complex<float> power = 1;
    for (int i = 0; i < n; i++) power *= std::complex<float>(0, 1);
    wrong += sums[0] != power;
    shmem_atomic_add(&word, 1L, 0);
    shmem_barrier_all();
    if (wrong) std::fprintf(stderr, "PE %d: %d wrong\n", me, wrong);
    shmem_finalize();
    return wrong;
}
