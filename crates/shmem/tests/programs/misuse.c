/* Calls that OpenSHMEM forbids. The argument names the call. */
#include <shmem.h>
#include <string.h>
#include <unistd.h>

static long lock;

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    const char *how = argv[1];
    if (strcmp(how, "before") == 0) shmem_barrier_all();
    shmem_init();
    long *word = shmem_malloc(sizeof *word), local = 0;
    if (strcmp(how, "stack") == 0) shmem_long_put(&local, word, 1, 0);
    if (strcmp(how, "end") == 0) shmem_putmem(word, word, (size_t)1 << 40, 0);
    if (strcmp(how, "free") == 0) shmem_free(&local);
    if (strcmp(how, "twice") == 0) shmem_free(word), shmem_free(word);
    if (strcmp(how, "realloc") == 0) word = shmem_realloc(&local, 100);
    if (strcmp(how, "asymmetric") == 0) word = shmem_malloc(shmem_my_pe() == 0 ? 64 : 128);
    if (strcmp(how, "mixed") == 0) shmem_my_pe() == 0 ? (void)shmem_malloc(64) : shmem_free(word);
    if (strcmp(how, "nothing") == 0) shmem_my_pe() == 0 ? (void)shmem_malloc(64) : shmem_free(NULL);
    if (strcmp(how, "freed") == 0) {
        shmem_free(word);
        shmem_long_p(word, 1, 0);
    }
    if (strcmp(how, "beyond") == 0) {
        long *next = shmem_malloc(64);
        shmem_putmem(word, &local, (size_t)((char *)next - (char *)word) + 1, 0);
    }
    if (strcmp(how, "poison") == 0) {
        *word = 1;
        shmem_free(word);
        return *(volatile unsigned char *)word == 0xF5 ? 0 : 3;
    }
    if (strcmp(how, "unlock") == 0) shmem_clear_lock(&lock);
    if (strcmp(how, "unlock twice") == 0) {
        /* PE 0 passes the lock to PE 1, and clears it again. */
        if (shmem_my_pe() == 0) shmem_set_lock(&lock);
        shmem_barrier_all();
        if (shmem_my_pe() == 0) usleep(50000), shmem_clear_lock(&lock), shmem_clear_lock(&lock);
        else shmem_set_lock(&lock);
        shmem_barrier_all();
    }
    if (strcmp(how, "pe") == 0) shmem_long_put(word, &local, 1, 1);
    if (strcmp(how, "context") == 0) shmem_ctx_long_put(SHMEM_CTX_INVALID, word, &local, 1, 0);
    if (strcmp(how, "team") == 0) {
        shmem_ctx_t context;
        shmem_team_create_ctx(SHMEM_TEAM_WORLD, 0, &context);
        shmem_ctx_long_put(context, word, &local, 1, 7);
    }
    shmem_finalize();
    return 0;
}
