/* The programs of bench/offload/speed. Each runs on the engine or on the kernel's stack. A server prints "ready"; a client prints one JSON document.
 *
 *   echo HOST PORT SIZE           sends each message of SIZE bytes back
 *   ping HOST PORT SIZE SECONDS   measures round trips of messages of SIZE bytes
 *   sink HOST PORT                receives until the end of a stream, then sends the number of bytes
 *   source HOST PORT SECONDS      sends to a sink
 *   short HOST PORT               accepts connections, answers each byte with it, and closes after a 'q'
 *   churn HOST PORT WIDTH SECONDS [MESSAGES]
 *                                 opens connections to `short`, WIDTH at once; each exchanges one byte, or MESSAGES
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in address;

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void no_delay(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int listen_at(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) die("listen");
    puts("ready");
    fflush(stdout);
    return fd;
}

static int connect_to(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    return fd;
}

/* Receives exactly len bytes. Returns 0 at the end of the stream. */
static int receive_all(int fd, char *bytes, size_t len) {
    for (size_t got = 0; got < len;) {
        ssize_t part = recv(fd, bytes + got, len - got, 0);
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

static char buffer[1 << 20];

static void run_echo(size_t size) {
    int listener = listen_at(0);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        no_delay(fd);
        while (receive_all(fd, buffer, size)) send_all(fd, buffer, size);
        close(fd);
    }
}

static int compare(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void run_ping(size_t size, double seconds) {
    enum { MOST = 1 << 22, WARM_UP = 1000 };
    uint32_t *times = malloc(MOST * sizeof *times);
    /* Touch the memory, so that no page fault falls into a round trip. */
    memset(times, 0, MOST * sizeof *times);
    int fd = connect_to();
    no_delay(fd);
    memset(buffer, 'm', size);
    size_t count = 0;
    uint64_t end = 0;
    for (int warm = 0;; warm++) {
        uint64_t start = now_ns();
        if (warm == WARM_UP) end = start + seconds * 1e9;
        if (end && (start >= end || count == MOST)) break;
        send_all(fd, buffer, size);
        if (!receive_all(fd, buffer, size)) die("the server ended");
        if (end) times[count++] = now_ns() - start;
    }
    qsort(times, count, sizeof *times, compare);
    printf("{\"count\": %zu, \"p50_ns\": %u, \"p99_ns\": %u}\n", count, times[count / 2], times[count - 1 - count / 100]);
}

static void run_sink(void) {
    int listener = listen_at(0);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) die("accept");
        uint64_t total = 0;
        ssize_t part;
        while ((part = recv(fd, buffer, sizeof buffer, 0)) > 0) total += part;
        if (part < 0) die("recv");
        send_all(fd, (char *)&total, sizeof total);
        close(fd);
    }
}

static void run_source(double seconds) {
    int fd = connect_to();
    uint64_t start = now_ns(), end = start + seconds * 1e9, sent = 0, total = 0;
    while (now_ns() < end) {
        send_all(fd, buffer, 256 << 10);
        sent += 256 << 10;
    }
    shutdown(fd, SHUT_WR);
    if (!receive_all(fd, (char *)&total, sizeof total) || total != sent) die("bytes are missing");
    printf("{\"bytes\": %llu, \"seconds\": %.6f}\n", (unsigned long long)total, (now_ns() - start) / 1e9);
}

static void watch(int epoll, int operation, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(epoll, operation, fd, &event)) die("epoll_ctl");
}

static void run_short(void) {
    int listener = listen_at(SOCK_NONBLOCK), epoll = epoll_create1(0);
    struct epoll_event events[256];
    watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN);
    for (;;) {
        int count = epoll_wait(epoll, events, 256, -1);
        for (int index = 0; index < count; index++) {
            int fd = events[index].data.fd;
            char byte;
            if (fd != listener) {
                if (recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && byte != 'q') continue;
                close(fd);
                continue;
            }
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
            if (errno != EAGAIN) die("accept4");
        }
    }
}

static void begin(int epoll) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0) die("socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) die("connect");
    watch(epoll, EPOLL_CTL_ADD, fd, EPOLLOUT);
}

static void send_next(int fd, int left) {
    if (send(fd, left == 1 ? "q" : "x", 1, MSG_NOSIGNAL) != 1) die("send");
}

static void run_churn(int width, double seconds, int messages) {
    static int left[65536];
    int epoll = epoll_create1(0), open = width;
    struct epoll_event events[256];
    uint64_t start = now_ns(), end = start + seconds * 1e9, done = 0, stop = 0;
    for (int index = 0; index < width; index++) begin(epoll);
    while (open > 0) {
        int count = epoll_wait(epoll, events, 256, 10000);
        if (count <= 0) die("connections hang");
        int late = now_ns() >= end;
        if (late && !stop) stop = now_ns();
        for (int index = 0; index < count; index++) {
            int fd = events[index].data.fd;
            char bytes[2];
            if (events[index].events & EPOLLOUT) {
                if (fd >= 65536) die("too many descriptors");
                send_next(fd, left[fd] = messages);
                watch(epoll, EPOLL_CTL_MOD, fd, EPOLLIN);
                continue;
            }
            ssize_t got = recv(fd, bytes, 2, 0);
            if (got < 0) die("recv");
            if (got > 0) {
                if (got != 1 || *bytes != (left[fd] == 1 ? 'q' : 'x')) die("a wrong answer");
                if (--left[fd] > 0) send_next(fd, left[fd]);
                continue;
            }
            close(fd);
            done += !late;
            if (late) open--;
            else begin(epoll);
        }
    }
    printf("{\"connections\": %llu, \"seconds\": %.6f}\n", (unsigned long long)done, (stop - start) / 1e9);
}

int main(int count, char **words) {
    if (count < 4) return 2;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(words[3]));
    if (inet_pton(AF_INET, words[2], &address.sin_addr) != 1) return 2;
    const char *what = words[1];
    double first = count > 4 ? atof(words[4]) : 0, second = count > 5 ? atof(words[5]) : 0, third = count > 6 ? atof(words[6]) : 1;
    if (!strcmp(what, "echo")) run_echo(first);
    else if (!strcmp(what, "ping")) run_ping(first, second);
    else if (!strcmp(what, "sink")) run_sink();
    else if (!strcmp(what, "source")) run_source(first);
    else if (!strcmp(what, "short")) run_short();
    else if (!strcmp(what, "churn")) run_churn(first, second, third);
    else return 2;
    return 0;
}
