/* Checks sockets in programs of glibc and of musl. The test compiles this file with both C libraries.
 *
 *   peer serve ADDRESS PORT            prints "ready", then echoes connections and datagrams
 *   peer check ADDRESS PORT OTHER      runs all checks, and prints "all right". OTHER is this program with the other library
 *   peer short ADDRESS PORT            exchanges a few bytes over a connection of its own
 *   peer inherited DESCRIPTOR          exchanges a few bytes over a connection that the parent process has opened
 *
 * musl's msghdr and cmsghdr have padding beside their lengths. The checks fill it with ones, as programs may. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s: line %d: %s (%s)\n", what, __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                               \
        }                                                                                           \
    } while (0)

#define LARGE 500000

static const char *what = "start";
static struct sockaddr_in server;
static uint32_t state = 1;

static void fill(unsigned char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        state = state * 1664525 + 1013904223;
        bytes[i] = state >> 24;
    }
}

static struct msghdr message(struct iovec *parts, int count)
{
    struct msghdr message;
    memset(&message, 0xff, sizeof message);
    message.msg_name = NULL;
    message.msg_namelen = 0;
    message.msg_iov = parts;
    message.msg_iovlen = count;
    message.msg_control = NULL;
    message.msg_controllen = 0;
    message.msg_flags = 0;
    return message;
}

/* Adds a control message with a number. */
static void attach(struct msghdr *message, void *room, size_t len, int level, int type, int value)
{
    memset(room, 0xff, len);
    message->msg_control = room;
    message->msg_controllen = CMSG_SPACE(sizeof value);
    struct cmsghdr *first = CMSG_FIRSTHDR(message);
    first->cmsg_len = CMSG_LEN(sizeof value);
    first->cmsg_level = level;
    first->cmsg_type = type;
    memcpy(CMSG_DATA(first), &value, sizeof value);
}

static int attached(struct msghdr *message, int level, int type)
{
    for (struct cmsghdr *next = CMSG_FIRSTHDR(message); next; next = CMSG_NXTHDR(message, next))
        if (next->cmsg_level == level && next->cmsg_type == type) {
            int value;
            memcpy(&value, CMSG_DATA(next), sizeof value);
            return value;
        }
    return -1;
}

static int dial(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    CHECK(getpeername(fd, (struct sockaddr *)&address, &len) == 0 && address.sin_port == server.sin_port);
    return fd;
}

static ssize_t send_by(int form, int fd, unsigned char *bytes, size_t len)
{
    struct iovec parts[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
    struct msghdr all = message(parts, 2);
    switch (form % 5) {
    case 0:
        return write(fd, bytes, len);
    case 1:
        return send(fd, bytes, len, MSG_NOSIGNAL);
    case 2:
        return sendto(fd, bytes, len, 0, NULL, 0);
    case 3:
        return writev(fd, parts, 2);
    default:
        return sendmsg(fd, &all, 0);
    }
}

static ssize_t receive_by(int form, int fd, unsigned char *bytes, size_t len)
{
    struct sockaddr_in from;
    socklen_t from_len = sizeof from;
    struct iovec parts[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
    struct msghdr all = message(parts, 2);
    switch (form % 6) {
    case 0:
        return read(fd, bytes, len);
    case 1:
        return recv(fd, bytes, len, 0);
    case 2:
        return recvfrom(fd, bytes, len, 0, (struct sockaddr *)&from, &from_len);
    case 3:
        return readv(fd, parts, 2);
    case 4:
        return recvmsg(fd, &all, 0);
    default:
        return recv(fd, bytes, len, MSG_WAITALL);
    }
}

/* Sends `len` bytes, and checks their echo. */
static void exchange(int fd, int form, size_t len)
{
    unsigned char sent[4096], received[4096];
    fill(sent, len);
    CHECK(send_by(form, fd, sent, len) == (ssize_t)len);
    for (size_t got = 0; got < len;) {
        ssize_t more = receive_by(form, fd, received + got, len - got);
        CHECK(more > 0);
        got += more;
    }
    CHECK(memcmp(sent, received, len) == 0);
}

static void blocking(int fd)
{
    what = "blocking calls";
    for (int form = 0; form < 60; form++)
        exchange(fd, form, 1 + form * 60);
}

static void *write_all(void *fd)
{
    static unsigned char bytes[LARGE];
    uint32_t kept = state;
    fill(bytes, LARGE);
    state = kept;
    for (size_t sent = 0; sent < LARGE;) {
        ssize_t more = send(*(int *)fd, bytes + sent, LARGE - sent, 0);
        CHECK(more > 0);
        sent += more;
    }
    return NULL;
}

/* One thread sends, another receives. */
static void threads(int fd)
{
    what = "threads";
    static unsigned char expected[LARGE], received[LARGE];
    uint32_t kept = state;
    fill(expected, LARGE);
    state = kept;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_all, &fd) == 0);
    for (size_t got = 0; got < LARGE;) {
        ssize_t more = recv(fd, received + got, LARGE - got, 0);
        CHECK(more > 0);
        got += more;
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memcmp(expected, received, LARGE) == 0);
}

static void events(int fd)
{
    what = "epoll";
    static unsigned char sent[LARGE], received[LARGE];
    size_t out = 0, in = 0;
    fill(sent, LARGE);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 0x1234567890};
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    while (in < LARGE) {
        CHECK(epoll_wait(epoll, &event, 1, 60000) == 1 && event.data.u64 == 0x1234567890);
        if (event.events & EPOLLOUT && out < LARGE) {
            ssize_t more = send(fd, sent + out, LARGE - out, 0);
            CHECK(more > 0 || errno == EAGAIN);
            out += more > 0 ? more : 0;
            if (out == LARGE) {
                event.events = EPOLLIN;
                CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
            }
        }
        ssize_t more = recv(fd, received + in, LARGE - in, 0);
        CHECK(more > 0 || (more == -1 && errno == EAGAIN));
        in += more > 0 ? more : 0;
    }
    CHECK(memcmp(sent, received, LARGE) == 0);
    CHECK(fcntl(fd, F_SETFL, 0) == 0 && close(epoll) == 0);
}

static void limits(int fd)
{
    what = "time limits";
    unsigned char byte;
    struct timeval limit = {.tv_usec = 20000}, none = {0}, given;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    fd_set set;
    for (int round = 0; round < 5; round++) {
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EAGAIN);
        CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        CHECK(poll(&one, 1, 20) == 0 && poll(&one, 1, 0) == 0);
        CHECK(ppoll(&one, 1, &(struct timespec){.tv_nsec = 20000000}, NULL) == 0);
        FD_ZERO(&set);
        FD_SET(fd, &set);
        given = limit;
        CHECK(select(fd + 1, &set, NULL, NULL, &given) == 0 && !FD_ISSET(fd, &set));
#ifndef __GLIBC__
        /* musl leaves the limit unchanged. glibc subtracts the time that has passed. */
        CHECK(given.tv_sec == limit.tv_sec && given.tv_usec == limit.tv_usec);
#endif
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none) == 0);
        exchange(fd, round, 50);
    }
    int count = -1;
    CHECK(ioctl(fd, FIONREAD, &count) == 0 && count == 0);
    CHECK(send(fd, "12345", 5, 0) == 5);
    CHECK(poll(&one, 1, -1) == 1);
    while (count != 5)
        CHECK(ioctl(fd, FIONREAD, &count) == 0);
    unsigned char echo[5];
    CHECK(recv(fd, echo, 5, MSG_PEEK | MSG_WAITALL) == 5);
    CHECK(recv(fd, echo, 5, MSG_WAITALL) == 5 && memcmp(echo, "12345", 5) == 0);
}

static void await(pid_t child)
{
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* Passes a descriptor to a child of fork, in ancillary data. */
static void passed(int fd)
{
    what = "passing a descriptor";
    int pair[2];
    char byte = 'x', room[CMSG_SPACE(sizeof fd)];
    struct iovec part = {&byte, 1};
    struct msghdr carrier = message(&part, 1);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        carrier.msg_control = room;
        carrier.msg_controllen = sizeof room;
        CHECK(recvmsg(pair[1], &carrier, MSG_CMSG_CLOEXEC) == 1);
        exchange(attached(&carrier, SOL_SOCKET, SCM_RIGHTS), 4, 900);
        _exit(0);
    }
    attach(&carrier, room, sizeof room, SOL_SOCKET, SCM_RIGHTS, fd);
    CHECK(sendmsg(pair[0], &carrier, 0) == 1);
    await(child);
    close(pair[0]);
    close(pair[1]);
    exchange(fd, 0, 900);
}

/* Starts this program and the one of the other C library, by each way that keeps them on the engine. */
static void programs(int fd, char *address, char *port, char *other)
{
    what = "starting programs";
    char number[12], *own = "/proc/self/exe";
    snprintf(number, sizeof number, "%d", fd);
    CHECK(fcntl(fd, F_SETFD, 0) == 0);
    char *files[] = {own, other};
    for (int round = 0; round < 2; round++) {
        char *inherited[] = {"peer", "inherited", number, NULL};
        char *fresh[] = {"peer", "short", address, port, NULL}, *none[] = {NULL};
        pid_t child = fork();
        if (child == 0) {
            execv(files[round], inherited);
            _exit(1);
        }
        await(child);
        child = vfork();
        if (child == 0) {
            execve(files[round], fresh, none);
            _exit(1);
        }
        await(child);
        CHECK(posix_spawn(&child, files[round], NULL, NULL, fresh, none) == 0);
        await(child);
        exchange(fd, round, 700);
    }
    char line[300];
    snprintf(line, sizeof line, "%s short %s %s && exec %s inherited %d", other, address, port, other, fd);
    CHECK(system(line) == 0);
}

/* Programs that were built for an older version of musl call freopen64. Newer versions lack it. */
static void reopening(void)
{
    what = "freopen64";
    FILE *(*reopen)(const char *, const char *, FILE *) = dlsym(RTLD_DEFAULT, "freopen64");
    FILE *file = fopen("/dev/null", "r");
    CHECK(reopen != NULL && file != NULL);
    file = reopen("/proc/self/stat", "r", file);
    CHECK(file != NULL && fgetc(file) > 0);
    CHECK(fclose(file) == 0);
}

static void datagrams(void)
{
    what = "datagrams";
    int one = 1, hops = 77, fd = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in from;
    unsigned char sent[1500], received[2000];
    char room[200];
    struct iovec part = {sent, sizeof sent};
    struct msghdr all = message(&part, 1);
    CHECK(setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &one, sizeof one) == 0);
    /* The network may lose a datagram, so each is sent until its echo arrives. */
    for (int found = 0; !found;) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        fill(sent, sizeof sent);
        part = (struct iovec){sent, sizeof sent};
        all = message(&part, 1);
        all.msg_name = &server;
        all.msg_namelen = sizeof server;
        attach(&all, room, sizeof room, IPPROTO_IP, IP_TTL, hops);
        CHECK(sendmsg(fd, &all, 0) == sizeof sent);
        if (poll(&wait, 1, 1000) != 1)
            continue;
        int count = 0;
        CHECK(ioctl(fd, FIONREAD, &count) == 0 && count == sizeof sent);
        part = (struct iovec){received, sizeof received};
        all = message(&part, 1);
        all.msg_name = &from;
        all.msg_namelen = sizeof from;
        all.msg_control = room;
        all.msg_controllen = sizeof room;
        CHECK(recvmsg(fd, &all, 0) == sizeof sent);
        CHECK(from.sin_port == server.sin_port && attached(&all, IPPROTO_IP, IP_TTL) == hops);
        found = memcmp(sent, received, sizeof sent) == 0;
    }
    CHECK(connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    struct timespec limit = {.tv_sec = 1};
    for (int found = 0; !found;) {
        struct mmsghdr many[2];
        struct iovec parts[2] = {{sent, 100}, {sent + 100, 200}};
        memset(many, 0xff, sizeof many);
        many[0].msg_hdr = message(&parts[0], 1);
        many[1].msg_hdr = message(&parts[1], 1);
        CHECK(sendmmsg(fd, many, 2, 0) == 2 && many[0].msg_len == 100 && many[1].msg_len == 200);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 1}, sizeof(struct timeval)) == 0);
        parts[0] = (struct iovec){received, 1000};
        parts[1] = (struct iovec){received + 1000, 1000};
        many[0].msg_hdr = message(&parts[0], 1);
        many[1].msg_hdr = message(&parts[1], 1);
        found = recvmmsg(fd, many, 2, MSG_WAITFORONE, &limit) > 0 && many[0].msg_len == 100
            && memcmp(received, sent, 100) == 0;
    }
    close(fd);
}

static void end(int fd)
{
    what = "end";
    unsigned char byte;
    CHECK(send(fd, "last", 4, 0) == 4 && shutdown(fd, SHUT_WR) == 0);
    for (int left = 4; left > 0; left--)
        CHECK(recv(fd, &byte, 1, 0) == 1);
    CHECK(recv(fd, &byte, 1, 0) == 0 && close(fd) == 0);
}

static void *echo(void *argument)
{
    int fd = (intptr_t)argument;
    static _Thread_local unsigned char bytes[65536];
    ssize_t got;
    for (int form = 0; (got = receive_by(form % 5, fd, bytes, sizeof bytes)) > 0; form++)
        for (ssize_t sent = 0; sent < got;) {
            ssize_t more = send_by(form, fd, bytes + sent, got - sent);
            /* A client that closes before it has read all bytes resets its connection. Only this thread ends. */
            if (more == -1 && (errno == ECONNRESET || errno == EPIPE)) {
                close(fd);
                return NULL;
            }
            CHECK(more > 0);
            sent += more;
        }
    close(fd);
    return NULL;
}

static void serve(void)
{
    what = "serve";
    signal(SIGPIPE, SIG_IGN);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&server, sizeof server) == 0 && listen(listener, 100) == 0);
    CHECK(setsockopt(udp, IPPROTO_IP, IP_RECVTTL, &one, sizeof one) == 0);
    CHECK(bind(udp, (struct sockaddr *)&server, sizeof server) == 0);
    puts("ready");
    fflush(stdout);
    struct pollfd both[2] = {{.fd = listener, .events = POLLIN}, {.fd = udp, .events = POLLIN}};
    for (;;) {
        CHECK(poll(both, 2, -1) > 0);
        if (both[0].revents) {
            pthread_t thread;
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
            CHECK(pthread_create(&thread, NULL, echo, (void *)(intptr_t)fd) == 0 && pthread_detach(thread) == 0);
        }
        if (both[1].revents) {
            unsigned char bytes[2000];
            char room[200];
            struct sockaddr_in from;
            struct iovec part = {bytes, sizeof bytes};
            struct msghdr all = message(&part, 1);
            all.msg_name = &from;
            all.msg_namelen = sizeof from;
            all.msg_control = room;
            all.msg_controllen = sizeof room;
            ssize_t got = recvmsg(udp, &all, MSG_DONTWAIT);
            if (got < 0)
                continue;
            int hops = attached(&all, IPPROTO_IP, IP_TTL);
            CHECK(hops > 0 && all.msg_namelen == sizeof from);
            part.iov_len = got;
            all = message(&part, 1);
            all.msg_name = &from;
            all.msg_namelen = sizeof from;
            attach(&all, room, sizeof room, IPPROTO_IP, IP_TTL, hops);
            CHECK(sendmsg(udp, &all, 0) == got);
        }
    }
}

int main(int count, char **arguments)
{
    CHECK(count >= 3);
    if (strcmp(arguments[1], "inherited") == 0) {
        what = "inherited";
        exchange(atoi(arguments[2]), 2, 800);
        exchange(atoi(arguments[2]), 4, 800);
        return 0;
    }
    CHECK(count >= 4);
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(arguments[3]));
    CHECK(inet_pton(AF_INET, arguments[2], &server.sin_addr) == 1);
    if (strcmp(arguments[1], "serve") == 0)
        serve();
    int fd = dial();
    if (strcmp(arguments[1], "short") == 0) {
        exchange(fd, 1, 600);
        return 0;
    }
    CHECK(count == 5);
    blocking(fd);
    limits(fd);
    threads(fd);
    events(fd);
    passed(fd);
    programs(fd, arguments[2], arguments[3], arguments[4]);
    blocking(fd);
    reopening();
    datagrams();
    end(fd);
    puts("all right");
    return 0;
}
