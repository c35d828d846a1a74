/* What needs C's `long double`, which Rust has no type for: values in arguments and results, and arithmetic. */
#include <stddef.h>

typedef struct context *shmem_ctx_t;
void shmem_putmem(void *dest, const void *source, size_t nelems, int pe);
void shmem_getmem(void *dest, const void *source, size_t nelems, int pe);
void shmem_ctx_putmem(shmem_ctx_t ctx, void *dest, const void *source, size_t nelems, int pe);
void shmem_ctx_getmem(shmem_ctx_t ctx, void *dest, const void *source, size_t nelems, int pe);

void inlane_shmem_longdouble_p(long double *dest, long double value, int pe) {
    shmem_putmem(dest, &value, sizeof value, pe);
}

void inlane_shmem_ctx_longdouble_p(shmem_ctx_t ctx, long double *dest, long double value, int pe) {
    shmem_ctx_putmem(ctx, dest, &value, sizeof value, pe);
}

long double inlane_shmem_longdouble_g(const long double *source, int pe) {
    long double value;
    shmem_getmem(&value, source, sizeof value, pe);
    return value;
}

long double inlane_shmem_ctx_longdouble_g(shmem_ctx_t ctx, const long double *source, int pe) {
    long double value;
    shmem_ctx_getmem(ctx, &value, source, sizeof value, pe);
    return value;
}

/* Both pointers are aligned for the type: chunks start at multiples of 4096 bytes. */
#define COMBINE(name, expression)                                                            \
    void inlane_longdouble_##name(void *accumulator, const void *other, size_t count) {      \
        long double *left = accumulator;                                                     \
        const long double *right = other;                                                    \
        for (size_t i = 0; i < count; i++) {                                                 \
            long double a = left[i], b = right[i];                                           \
            left[i] = expression;                                                            \
        }                                                                                    \
    }
COMBINE(sum, a + b)
COMBINE(prod, a * b)
COMBINE(min, b < a ? b : a)
COMBINE(max, b > a ? b : a)
