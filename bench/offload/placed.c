/* The programs of bench/offload/placed: whole messages, each of which is answered by 64 bytes. Each prints one JSON object.
 *
 *   placed serve HOST PORT SIZE buffer|malloc loop|whole   receives into a buffer of the engine's memory or of malloc: by calls of
 *                                                          recv until the message is complete, or by one call with MSG_WAITALL
 *   placed ask HOST PORT SIZE SECONDS                      sends messages of SIZE bytes, one at a time */
#include "inlane_offload.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER = 64, MOST = 1 << 20 };

static struct sockaddr_in address;

static void die(const char *what) {
    perror(what);
    exit(1);
}

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

/* Receives a whole message. Returns 0 at the end of the stream. */
static int receive(int fd, char *bytes, size_t len, int flags) {
    for (size_t got = 0; got < len;) {
        ssize_t part = recv(fd, bytes + got, len - got, flags);
        if (part < 0) die("recv");
        if (part == 0) return 0;
        got += part;
    }
    return 1;
}

static void send_all(int fd, const char *bytes, size_t len) {
    for (size_t sent = 0; sent < len;) {
        ssize_t part = send(fd, bytes + sent, len - sent, 0);
        if (part < 0) die("send");
        sent += part;
    }
}

static void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void serve(size_t size, int placed, int flags) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    char *buffer = placed ? inlane_offload_buffer(size) : malloc(size), answer[ANSWER] = {0};
    if (!buffer || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) die("listen");
    memset(buffer, 1, size);
    puts("ready");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    no_delay(fd);
    uint64_t messages = 0, used = used_ns();
    for (; receive(fd, buffer, size, flags); messages++) send_all(fd, answer, ANSWER);
    printf("{\"cpu_us_per_message\": %.2f}\n", (used_ns() - used) / 1e3 / (messages ? messages : 1));
}

static int compare(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void ask(size_t size, double seconds) {
    uint32_t *times = calloc(MOST, sizeof *times);
    char *message = calloc(1, size), answer[ANSWER];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!times || !message || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    no_delay(fd);
    size_t count = 0;
    uint64_t begin = now_ns() + 200000000, end = begin + seconds * 1e9;
    for (uint64_t start; count < MOST && (start = now_ns()) < end;) {
        send_all(fd, message, size);
        if (!receive(fd, answer, ANSWER, 0)) die("the server ended");
        if (start >= begin) times[count++] = now_ns() - start;
    }
    qsort(times, count, sizeof *times, compare);
    printf("{\"messages\": %zu, \"p50_us\": %.2f, \"p99_us\": %.2f}\n", count, times[count / 2] / 1e3, times[count - 1 - count / 100] / 1e3);
}

int main(int count, char **words) {
    if (count < 6) return 2;
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(words[3]));
    if (inet_pton(AF_INET, words[2], &address.sin_addr) != 1) return 2;
    size_t size = strtoull(words[4], NULL, 10);
    if (!strcmp(words[1], "ask")) ask(size, atof(words[5]));
    else if (count == 7) serve(size, !strcmp(words[5], "buffer"), strcmp(words[6], "whole") ? 0 : MSG_WAITALL);
    else return 2;
    return 0;
}
