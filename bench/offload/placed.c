/* The sink of bench/offload/placed: receives a stream into a buffer of the engine's memory or of malloc, and prints one JSON line.
 *
 *   placed HOST PORT SIZE buffer|malloc */
#include "inlane_offload.h"
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static uint64_t used_ns(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000ull + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000ull;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    size_t size = strtoull(words[3], NULL, 10);
    int placed = !strcmp(words[4], "buffer"), listener = socket(AF_INET, SOCK_STREAM, 0);
    char *buffer = placed ? inlane_offload_buffer(size) : malloc(size);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[2]))};
    inet_pton(AF_INET, words[1], &address.sin_addr);
    if (!buffer || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) return 1;
    memset(buffer, 1, size);
    puts("ready");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    uint64_t total = 0, receives = 0, start = now_ns(), used = used_ns();
    ssize_t part;
    while ((part = recv(fd, buffer, size, 0)) > 0) {
        total += part;
        receives++;
    }
    if (part < 0) return 1;
    double seconds = (now_ns() - start) / 1e9, bytes = total ? total : 1;
    printf("{\"placed\": %d, \"size\": %zu, \"gbit_s\": %.2f, \"cpu_ns_per_kib\": %.1f, \"mean_receive\": %.0f}\n", placed, size,
           bytes * 8e-9 / seconds, (used_ns() - used) * 1024 / bytes, bytes / (receives ? receives : 1));
    fflush(stdout);
    return send(fd, &total, sizeof total, 0) == sizeof total ? 0 : 1;
}
