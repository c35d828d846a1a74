/* Measures the system calls with which an engine opens and closes connections, each 1000 times in a row. Prints the shortest mean time of 21 rounds.
 *
 *   cc -O2 -o calls calls.c && (ulimit -n 8192; ./calls)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1000, ROUNDS = 21, MOST = 250, RECORD = 20 };

static int engine[COUNT], program[COUNT], passed[COUNT], round_number;
static struct { const char *name; double best; } results[40];
static int result_count;

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void note(int index, const char *name, double mean) {
    if (!results[index].best || mean < results[index].best) results[index].best = mean;
    results[index].name = name;
    if (index >= result_count) result_count = index + 1;
}

/* Times a statement for each `i` below COUNT in steps of `step`. */
#define TIME_STEPS(name, step, ...) do { \
    double start = now_ns(); \
    for (int i = 0; i < COUNT; i += step) { __VA_ARGS__; } \
    note(index++, name, (now_ns() - start) / COUNT); \
} while (0)
#define TIME(name, ...) TIME_STEPS(name, 1, __VA_ARGS__)

static void send_descriptors(int socket, const int *descriptors, int count) {
    char control[CMSG_SPACE(4 * MOST)], record[RECORD] = {0};
    struct iovec part = {record, RECORD};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(4 * count)};
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    *first = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(4 * count)};
    memcpy(CMSG_DATA(first), descriptors, 4 * count);
    check(sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == RECORD, "sendmsg");
}

static void receive_descriptors(int socket, int *descriptors) {
    char control[CMSG_SPACE(4 * MOST)], record[RECORD];
    struct iovec part = {record, RECORD};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    check(recvmsg(socket, &header, MSG_CMSG_CLOEXEC) == RECORD, "recvmsg");
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    memcpy(descriptors, CMSG_DATA(first), first->cmsg_len - CMSG_LEN(0));
}

/* Binds a socket to an abstract name of `length` bytes that no other socket has. */
static void bind_name(int socket, char kind, int number, int length) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memset(address.sun_path + 1, kind, length - 1);
    memcpy(address.sun_path + 12, &number, 4);
    memcpy(address.sun_path + 16, &round_number, 4);
    check(bind(socket, (void *)&address, 2 + length) == 0, "bind");
}

static void run_round(void) {
    int index = 0, listener[2], one = 1, large = 1 << 22, epoll = epoll_create1(0);
    char byte;
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, listener) == 0, "socketpair");
    setsockopt(listener[0], SOL_SOCKET, SO_SNDBUFFORCE, &large, 4);
    TIME("socketpair", {
        int ends[2];
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
        engine[i] = ends[0];
        program[i] = ends[1];
    });
    TIME("setsockopt", setsockopt(engine[i], SOL_SOCKET, SO_OOBINLINE, &one, 4));
    TIME("bind abstract", bind_name(program[i], 'p', i, 65));
    struct stat status;
    TIME("fstat", fstat(program[i], &status));
    TIME("epoll_ctl add", {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
        epoll_ctl(epoll, EPOLL_CTL_ADD, engine[i], &event);
    });
    TIME("sendmsg 1 fd", send_descriptors(listener[0], program + i, 1));
    TIME("recvmsg 1 fd", receive_descriptors(listener[1], passed + i));
    TIME("close sent copy", close(program[i]));
    TIME_STEPS("sendmsg 250 fds, per fd", MOST, send_descriptors(listener[0], passed + i, MOST));
    TIME_STEPS("recvmsg 250 fds, per fd", MOST, receive_descriptors(listener[1], program + i));
    for (int i = 0; i < COUNT; i++) close(program[i]);
    TIME("write 1 B", check(write(engine[i], "x", 1) == 1, "write"));
    TIME("read 1 B", check(read(passed[i], &byte, 1) == 1, "read"));
    TIME("poll", {
        struct pollfd entry = {engine[i], POLLIN, 0};
        poll(&entry, 1, 0);
    });
    TIME("dup+close", close(fcntl(passed[i], F_DUPFD_CLOEXEC, 0)));
    TIME("fcntl setfl", fcntl(passed[i], F_SETFL, O_NONBLOCK));
    TIME("getsockname", {
        struct sockaddr_un address;
        socklen_t len = sizeof address;
        getsockname(passed[i], (void *)&address, &len);
    });
    TIME("close program's end (last)", close(passed[i]));
    TIME("read EOF", check(read(engine[i], &byte, 1) == 0, "read"));
    TIME("bind end", bind_name(engine[i], 'e', i, 29));
    TIME("shutdown", shutdown(engine[i], SHUT_WR));
    TIME("close engine's end", close(engine[i]));
    TIME("eventfd", engine[i] = eventfd(0, EFD_NONBLOCK));
    TIME("close eventfd", close(engine[i]));
    TIME("socket inet", engine[i] = socket(AF_INET, SOCK_STREAM, 0));
    TIME("socket unix", program[i] = socket(AF_UNIX, SOCK_STREAM, 0));
    TIME("dup3 over inet", dup3(program[i], engine[i], O_CLOEXEC));
    TIME("close both", { close(engine[i]); close(program[i]); });
    TIME("getppid", getppid());
    close(listener[0]);
    close(listener[1]);
    close(epoll);
}

int main(void) {
    for (; round_number < ROUNDS; round_number++) run_round();
    for (int index = 0; index < result_count; index++) printf("%-28s %7.0f ns\n", results[index].name, results[index].best);
    return 0;
}
