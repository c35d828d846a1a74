/* Small enough for valgrind. Static objects with an array of odd size, which AddressSanitizer surrounds with
 * space that must not be read. */
#include <shmem.h>

static char odd[5];
static long word = 3;

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), right = (me + 1) % shmem_n_pes();
    char mine[5] = {(char)me, 1, 2, 3, 4};
    long *array = shmem_malloc(3 * sizeof *array);
    array[2] = me;
    shmem_char_put(odd, mine, 5, right);
    shmem_long_atomic_add(&word, 2, right);
    shmem_barrier_all();
    int left = (me + shmem_n_pes() - 1) % shmem_n_pes(), wrong = odd[0] != (char)left;
    wrong += odd[4] != 4 || word != 5 || shmem_long_g(&array[2], right) != right;
    shmem_barrier_all();
    shmem_free(array);
    shmem_finalize();
    return wrong;
}
