/* Teams, contexts, and the collectives of teams (OpenSHMEM 1.5, sections 9.4, 9.5 and 9.9). */
#include "check.h"
#include <string.h>

static long to[512], from[512];
static int word;

/* Fills the arrays, calls every collective over the team, and checks the results. */
static void collectives(shmem_team_t team) {
    int me = shmem_team_my_pe(team), n = shmem_team_n_pes(team);
    if (me < 0) return;
    for (int i = 0; i < 64; i++) from[i] = me * 1000 + i;
    memset(to, -1, sizeof to);
    CHECK(shmem_team_sync(team) == 0);

    CHECK(shmem_long_broadcast(team, to, from, 3, n - 1) == 0);
    for (int i = 0; i < 3; i++) CHECK(to[i] == (n - 1) * 1000 + i); /* at the root too */
    CHECK(to[3] == -1);
    shmem_team_sync(team);
    CHECK(shmem_broadcastmem(team, to, from, 8, 0) == 0 && to[0] == 0);
    shmem_team_sync(team);

    /* PE i contributes i + 1 elements. */
    CHECK(shmem_long_collect(team, to, from, me + 1) == 0);
    for (int pe = 0, at = 0; pe < n; pe++)
        for (int i = 0; i <= pe; i++) CHECK(to[at++] == pe * 1000 + i);
    shmem_team_sync(team);
    CHECK(shmem_collectmem(team, to, from, 8) == 0 && to[n - 1] == (n - 1) * 1000);
    shmem_team_sync(team);

    CHECK(shmem_long_fcollect(team, to, from, 2) == 0);
    for (int pe = 0; pe < n; pe++) CHECK(to[2 * pe] == pe * 1000 && to[2 * pe + 1] == pe * 1000 + 1);
    shmem_team_sync(team);
    CHECK(shmem_fcollectmem(team, to, from, 8) == 0 && to[n - 1] == (n - 1) * 1000);
    shmem_team_sync(team);

    CHECK(shmem_long_alltoall(team, to, from, 2) == 0);
    for (int pe = 0; pe < n; pe++) CHECK(to[2 * pe + 1] == pe * 1000 + 2 * me + 1);
    shmem_team_sync(team);
    CHECK(shmem_alltoallmem(team, to, from, 8) == 0 && to[n - 1] == (n - 1) * 1000 + me);
    shmem_team_sync(team);
    memset(to, -1, sizeof to);
    shmem_team_sync(team);
    CHECK(shmem_long_alltoalls(team, to, from, 3, 2, 2) == 0);
    for (int i = 0; i < 2 * n; i++) CHECK(to[3 * i] == i / 2 * 1000 + (me * 2 + i % 2) * 2);
    CHECK(to[1] == -1 && to[2] == -1);
    shmem_team_sync(team);
    CHECK(shmem_alltoallsmem(team, to, from, 1, 1, 8) == 0 && to[0] == me);
    shmem_team_sync(team);

    CHECK(shmem_long_sum_reduce(team, to, from, 4) == 0);
    for (int i = 0; i < 4; i++) CHECK(to[i] == 1000L * n * (n - 1) / 2 + i * n);
    shmem_team_sync(team);
    CHECK(shmem_long_max_reduce(team, from, from, 4) == 0); /* in place */
    CHECK(from[3] == (n - 1) * 1000 + 3);
    shmem_team_sync(team);
}

static void splits(void) {
    int me = shmem_my_pe(), n = shmem_n_pes();
    shmem_team_t team, other, config_team;

    CHECK(shmem_team_my_pe(SHMEM_TEAM_WORLD) == me && shmem_team_n_pes(SHMEM_TEAM_WORLD) == n);
    CHECK(shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1 && shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1);
    CHECK(shmem_team_sync(SHMEM_TEAM_INVALID) != 0);
    CHECK(shmem_long_sum_reduce(SHMEM_TEAM_INVALID, to, from, 1) != 0);
    const uintptr_t numbers[] = {3, 77, 4096, UINTPTR_MAX};
    for (int i = 0; i < 4; i++) {
        shmem_team_t none = (shmem_team_t)numbers[i];
        CHECK(shmem_team_my_pe(none) == -1 && shmem_team_sync(none) != 0);
        shmem_team_destroy(none);
    }
    int shared = shmem_team_my_pe(SHMEM_TEAM_SHARED);
    CHECK(shared >= 0 && shmem_team_translate_pe(SHMEM_TEAM_SHARED, shared, SHMEM_TEAM_WORLD) == me);
    collectives(SHMEM_TEAM_WORLD);
    collectives(SHMEM_TEAM_SHARED);

    /* Even PEs. */
    shmem_team_config_t config = {3}, seen = {-1};
    int evens = (n + 1) / 2;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, evens, &config, SHMEM_TEAM_NUM_CONTEXTS, &team) == 0);
    CHECK((team != SHMEM_TEAM_INVALID) == (me % 2 == 0));
    CHECK(shmem_team_my_pe(team) == (me % 2 ? -1 : me / 2));
    if (team != SHMEM_TEAM_INVALID) {
        CHECK(shmem_team_get_config(team, SHMEM_TEAM_NUM_CONTEXTS, &seen) == 0 && seen.num_contexts == 3);
        CHECK(shmem_team_get_config(team, ~0L, &seen) != 0);
        CHECK(shmem_team_translate_pe(team, evens - 1, SHMEM_TEAM_WORLD) == 2 * (evens - 1));
        CHECK(shmem_team_translate_pe(team, evens, SHMEM_TEAM_WORLD) == -1);
        CHECK(shmem_team_translate_pe(team, 0, SHMEM_TEAM_INVALID) == -1);
        if (n > 1) CHECK(shmem_team_translate_pe(SHMEM_TEAM_WORLD, 1, team) == -1);
        collectives(team);
        /* A team of a team, in reverse order. */
        CHECK(shmem_team_split_strided(team, evens - 1, -1, evens, NULL, 0, &other) == 0);
        CHECK(shmem_team_my_pe(other) == evens - 1 - me / 2);
        CHECK(shmem_team_get_config(other, SHMEM_TEAM_NUM_CONTEXTS, &seen) == 0 && seen.num_contexts == 0);
        collectives(other);
        CHECK(shmem_team_ptr(other, &word, shmem_team_my_pe(other)) == &word);
        CHECK(shmem_team_ptr(other, &word, evens) == NULL);
        shmem_team_destroy(other);
    }
    shmem_team_destroy(team);
    shmem_barrier_all();

    /* Sets that are not within the parent. */
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &team) != 0 && !team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, -1, 1, 1, NULL, 0, &team) != 0 && !team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 0, NULL, 0, &team) != 0 && !team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 0, 2, NULL, 0, &team) != 0 && !team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, NULL, 0, &team) != 0 && !team);
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1, NULL, 1, &config_team) != 0 && !config_team);

    /* Rows of 3 PEs, and columns. */
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 3, NULL, 0, &team, NULL, 0, &other) == 0);
    int x = n < 3 ? n : 3, row = me / x * x;
    CHECK(shmem_team_my_pe(team) == me % x && shmem_team_n_pes(team) == (n - row < x ? n - row : x));
    CHECK(shmem_team_my_pe(other) == me / x && shmem_team_n_pes(other) == (n - me % x + x - 1) / x);
    collectives(team);
    shmem_barrier_all();
    collectives(other);
    shmem_team_destroy(team);
    shmem_team_destroy(other);
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 0, NULL, 0, &team, NULL, 0, &other) != 0 && !team && !other);

    /* Destroyed teams do not use up anything. */
    for (int i = 0; i < 1000; i++) {
        CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team) == 0);
        shmem_team_destroy(team);
    }
    shmem_team_destroy(SHMEM_TEAM_INVALID);
}

static void contexts(void) {
    int me = shmem_my_pe(), n = shmem_n_pes(), right = (me + 1) % n, left = (me + n - 1) % n;
    shmem_ctx_t ctx, reverse_ctx;
    shmem_team_t team, reverse;

    CHECK(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &team) == 0 && team == SHMEM_TEAM_WORLD);
    CHECK(shmem_ctx_get_team(SHMEM_CTX_INVALID, &team) != 0 && team == SHMEM_TEAM_INVALID);
    CHECK(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
    shmem_ctx_destroy(SHMEM_CTX_INVALID);
    shmem_ctx_quiet(SHMEM_CTX_INVALID);
    CHECK(shmem_ctx_create(SHMEM_CTX_SERIALIZED | SHMEM_CTX_NOSTORE, &ctx) == 0 && ctx != SHMEM_CTX_INVALID);
    shmem_ctx_session_config_t hints = {.total_ops = 10};
    shmem_ctx_session_start(ctx, SHMEM_CTX_SESSION_BATCH, &hints, SHMEM_CTX_SESSION_TOTAL_OPS);
    shmem_ctx_session_stop(ctx);
    CHECK(shmem_ctx_get_team(ctx, &team) == 0 && team == SHMEM_TEAM_WORLD);

    shmem_barrier_all();
    long values[3] = {me, me + 1, me + 2};
    shmem_ctx_long_put_nbi(ctx, to, values, 3, right);
    shmem_ctx_fence(ctx);
    shmem_ctx_int_p(ctx, &word, me + 7, right);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    CHECK(to[0] == left && to[2] == left + 2 && word == left + 7);
    CHECK(shmem_ctx_int_g(ctx, &word, right) == me + 7);
    shmem_barrier_all();

    /* A context of a team numbers PEs as its team does. */
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &reverse) == 0);
    CHECK(shmem_team_create_ctx(reverse, SHMEM_CTX_PRIVATE, &reverse_ctx) == 0);
    CHECK(shmem_ctx_get_team(reverse_ctx, &team) == 0 && team == reverse);
    shmem_ctx_int_p(reverse_ctx, &word, 100 + me, me);
    shmem_ctx_int_atomic_add(reverse_ctx, &word, 1000, me);
    shmem_ctx_quiet(reverse_ctx);
    shmem_barrier_all();
    CHECK(word == 1100 + n - 1 - me);
    CHECK(shmem_ctx_int_atomic_fetch(reverse_ctx, &word, me) == 1100 + me);
    shmem_ctx_destroy(reverse_ctx);
    shmem_ctx_destroy(ctx);
    shmem_team_destroy(reverse);
}

int main(void) {
    shmem_init();
    splits();
    shmem_barrier_all();
    contexts();
    shmem_barrier_all();
    shmem_finalize();
    return wrong;
}
