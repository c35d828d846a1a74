/* Measures the system calls that stand between two programs whose sockets are on engines, and a cache line's way between two cores.
 * Prints one line for each: the least mean of five runs, in nanoseconds.
 *
 *   cc -O2 -pthread -o /tmp/calls bench/offload/calls.c && /tmp/calls [CORE OTHER_CORE]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 200000, TRIPS = 400000 };

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("sched_setaffinity");
}

#define MEASURE(name, call)                                                       \
    do {                                                                          \
        double least = 1e18;                                                      \
        for (int run = 0; run < 5; run++) {                                       \
            uint64_t start = now_ns();                                            \
            for (int count = 0; count < CALLS; count++) (void)(call);             \
            double mean = (double)(now_ns() - start) / CALLS;                     \
            if (mean < least) least = mean;                                       \
        }                                                                         \
        printf("%-44s %7.1f\n", name, least);                                     \
    } while (0)

/* Two words on cache lines of their own, and not in adjacent lines. */
static _Alignas(256) struct {
    atomic_ulong request;
    char distance[248];
    atomic_ulong answer;
} lines;

static void *answer(void *core) {
    pin((int)(intptr_t)core);
    for (unsigned long trip = 1; trip <= TRIPS; trip++) {
        while (atomic_load_explicit(&lines.request, memory_order_acquire) != trip) __builtin_ia32_pause();
        atomic_store_explicit(&lines.answer, trip, memory_order_release);
    }
    return NULL;
}

int main(int count, char **words) {
    int core = count > 2 ? atoi(words[1]) : 0, other = count > 2 ? atoi(words[2]) : 1;
    int pair[2], bytes;
    char buffer[64];
    uint64_t cookie;
    socklen_t len;
    struct stat status;
    struct epoll_event event = {.events = EPOLLIN}, events[256];
    sigset_t all, before;
    pin(core);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return 1;
    int watched = epoll_create1(0), other_instance = epoll_create1(0);
    epoll_ctl(watched, EPOLL_CTL_ADD, pair[0], &event);
    sigfillset(&all);
    MEASURE("clock_gettime", now_ns());
    MEASURE("getppid", syscall(SYS_getppid));
    MEASURE("fstat of a UNIX socket", fstat(pair[0], &status));
    MEASURE("getsockopt SO_COOKIE", (len = sizeof cookie, getsockopt(pair[0], SOL_SOCKET, SO_COOKIE, &cookie, &len)));
    MEASURE("ioctl TIOCOUTQ", ioctl(pair[0], TIOCOUTQ, &bytes));
    MEASURE("fcntl F_GETFL", fcntl(pair[0], F_GETFL));
    MEASURE("sigprocmask, to block and to unblock", pthread_sigmask(SIG_BLOCK, &all, &before) | pthread_sigmask(SIG_SETMASK, &before, NULL));
    MEASURE("recv of an empty UNIX socket", recv(pair[0], buffer, sizeof buffer, MSG_DONTWAIT));
    MEASURE("sched_yield", sched_yield());
    MEASURE("epoll_wait without events, timeout 0", epoll_wait(watched, events, 256, 0));
    MEASURE("epoll_ctl MOD", epoll_ctl(watched, EPOLL_CTL_MOD, pair[0], &event));
    MEASURE("epoll_ctl ADD, then DEL", epoll_ctl(other_instance, EPOLL_CTL_ADD, pair[0], &event) | epoll_ctl(other_instance, EPOLL_CTL_DEL, pair[0], NULL));
    MEASURE("send and recv of 64 B through a UNIX pair", send(pair[0], buffer, 64, 0) + recv(pair[1], buffer, 64, 0));
    pthread_t thread;
    pthread_create(&thread, NULL, answer, (void *)(intptr_t)other);
    uint64_t start = now_ns();
    for (unsigned long trip = 1; trip <= TRIPS; trip++) {
        atomic_store_explicit(&lines.request, trip, memory_order_release);
        while (atomic_load_explicit(&lines.answer, memory_order_acquire) != trip) __builtin_ia32_pause();
    }
    printf("%-44s %7.1f\n", "a cache line to the other core and back", (double)(now_ns() - start) / TRIPS);
    pthread_join(thread, NULL);
    return 0;
}
