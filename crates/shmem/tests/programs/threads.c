/* Collectives of different teams, called by threads of one PE at the same time (OpenSHMEM 1.5, section 9.2). */
#include "check.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 20, LARGE = 20000, MANY = 40, TOO_MANY = 20000 };

static shmem_team_t teams[THREADS], many[TOO_MANY], first, second;
static long from[THREADS][LARGE], to[THREADS][LARGE], all_from, all_to;

/* Calls collectives of one team, with values that no other team and no other round uses. */
static void *collectives(void *argument) {
    int t = *(int *)argument;
    shmem_team_t team = teams[t];
    int me = shmem_team_my_pe(team), n = shmem_team_n_pes(team);
    if (me < 0) return NULL;
    for (int round = 0; round < ROUNDS; round++) {
        long base = 1000000L * t + 1000L * round;
        progress();
        int count = round == ROUNDS - 1 ? LARGE : 16;
        for (int i = 0; i < count; i++) from[t][i] = base + me;
        CHECK(shmem_long_sum_reduce(team, to[t], from[t], count) == 0);
        for (int i = 0; i < count; i++) CHECK(to[t][i] == base * n + n * (n - 1) / 2);
        shmem_team_sync(team);
        CHECK(shmem_long_broadcast(team, to[t], from[t], 2, round % n) == 0);
        CHECK(to[t][1] == base + round % n);
        shmem_team_sync(team);
        CHECK(shmem_long_collect(team, to[t], from[t], me == 0 ? 2 : 1) == 0);
        for (int pe = 0; pe < n; pe++) CHECK(to[t][pe + 1] == base + pe);
        shmem_team_sync(team);
        CHECK(shmem_long_alltoall(team, to[t], from[t], 1) == 0);
        for (int pe = 0; pe < n; pe++) CHECK(to[t][pe] == base + pe);
        shmem_team_sync(team);
    }
    return NULL;
}

/* Waits for the other PEs in the first team. They come only after their threads have passed the second team. */
static void *sync_first_team(void *argument) {
    (void)argument;
    shmem_team_sync(first);
    return NULL;
}

static void opposite_orders(shmem_team_t one, shmem_team_t two) {
    first = one;
    second = two;
    for (int round = 0; round < ROUNDS; round++) {
        progress();
        if (shmem_my_pe() % 2 == 0) {
            pthread_t thread;
            pthread_create(&thread, NULL, sync_first_team, NULL);
            usleep(1000); /* most likely, the thread waits by now; the test passes in any case */
            shmem_team_sync(second);
            pthread_join(thread, NULL);
        } else {
            shmem_team_sync(second);
            shmem_team_sync(first);
        }
    }
}

/* Makes many teams, uses and ends them. */
static void many_teams(void) {
    int me = shmem_my_pe(), n = shmem_n_pes();
    for (int i = 0; i < MANY; i++) {
        progress();
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &many[i]) == 0);
        all_from = me + i;
        CHECK(shmem_long_max_reduce(many[i], &all_to, &all_from, 1) == 0 && all_to == n - 1 + i);
        shmem_team_sync(many[i]);
    }
    opposite_orders(many[MANY - 1], many[MANY - 2]);
    for (int i = 0; i < MANY; i++) shmem_team_destroy(many[(i * 7 + me) % MANY]);
}

/* Makes teams until there is no room for another one. All PEs notice that at the same team. */
static void too_many_teams(void) {
    int made = 0, n = shmem_n_pes();
    progress();
    while (made < TOO_MANY && shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &many[made]) == 0) made++;
    CHECK(made >= 64 && (n == 1 || (made < TOO_MANY && many[made] == SHMEM_TEAM_INVALID)));
    all_from = made;
    CHECK(shmem_long_max_reduce(SHMEM_TEAM_WORLD, &all_to, &all_from, 1) == 0 && all_to == made);
    CHECK(shmem_long_sum_reduce(many[made - 1], &all_to, &all_from, 1) == 0 && all_to == (long)made * n);
    shmem_barrier_all();
    while (made > 0) shmem_team_destroy(many[--made]), progress();
}

int main(int argc, char **argv) {
    int provided, numbers[THREADS];
    pthread_t threads[THREADS];
    progress();
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    int n = shmem_n_pes();
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &teams[0]);
    shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &teams[1]);
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, NULL, 0, &teams[2]);
    teams[3] = SHMEM_TEAM_SHARED;
    opposite_orders(teams[0], teams[1]);
    for (int t = 0; t < THREADS; t++) {
        numbers[t] = t;
        pthread_create(&threads[t], NULL, collectives, &numbers[t]);
    }
    for (int round = 0; round < ROUNDS; round++) {
        all_from = round + shmem_my_pe();
        shmem_barrier_all();
        CHECK(shmem_long_max_reduce(SHMEM_TEAM_WORLD, &all_to, &all_from, 1) == 0);
        CHECK(all_to == round + n - 1);
        shmem_barrier_all();
    }
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    many_teams();
    if (argc > 1 && !strcmp(argv[1], "many")) too_many_teams();
    many_teams();
    shmem_finalize();
    return wrong;
}
