/* Measures the system calls that the pairs of short connections cost: of one connection between two programs whose sockets are on two
 * engines, with 64 bytes in each direction, closed by the client first. All calls are made in one process, in the order of a real
 * connection. So the figures contain neither TCP, packets and waits nor the wake-ups of other processes.
 *
 * Prints one line for each of the four parties: its number of calls, and the least mean of five runs in nanoseconds. Calls that a
 * connection without a pair would make as well are left out, such as socket().
 *
 *   cc -O2 -o /tmp/pairs bench/offload/pairs.c && /tmp/pairs [CORE]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 10000, RUNS = 5, PARTIES = 4, DATA = 64, REQUEST = 512, RECORD = 65, FILLER = 8192 };
enum party { CLIENT, CLIENT_ENGINE, SERVER_ENGINE, SERVER };

static const char *const NAMES[PARTIES] = {"client's library", "client's engine", "server's engine", "server's library"};
static uint64_t spent_ns[PARTIES], calls[PARTIES], since_ns;
static char bytes[FILLER];

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* Counts the calls of a party since the last call of this function. */
static void end_turn(enum party party, int made) {
    uint64_t now = now_ns();
    spent_ns[party] += now - since_ns;
    calls[party] += made;
    since_ns = now_ns();
}

static long check(const char *what, long result) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
    return result;
}

static void set_number(int fd, int name, int value) {
    check("setsockopt", setsockopt(fd, SOL_SOCKET, name, &value, sizeof value));
}

static uint64_t cookie_of(int fd) {
    uint64_t cookie;
    socklen_t len = sizeof cookie;
    check("SO_COOKIE", getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len));
    return cookie;
}

/* Binds an end to an abstract name of the length that the library and the engine use. */
static void name_end(int fd, char kind) {
    static uint64_t count;
    static pid_t process;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!process) process = getpid();
    address.sun_path[1] = kind;
    memcpy(address.sun_path + 2, &process, sizeof process);
    memcpy(address.sun_path + 2 + sizeof process, &(uint64_t){++count}, sizeof count);
    check("bind", bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t) + 1 + RECORD));
}

static void ask_name(int fd, int (*ask)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_un address;
    socklen_t len = sizeof address;
    check("name", ask(fd, (struct sockaddr *)&address, &len));
}

static void pass(int through, size_t len, const int *ends, int count) {
    _Alignas(8) char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec part = {bytes, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(first), ends, count * sizeof(int));
    check("sendmsg", sendmsg(through, &message, MSG_NOSIGNAL));
}

/* Receives bytes with room for descriptors, as the engine does. */
static long take(int through, size_t len, int *ends, int count) {
    static _Alignas(8) char control[16 + 4 * 254];
    struct iovec part = {bytes, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    long got = check("recvmsg", recvmsg(through, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (count > 0) memcpy(ends, CMSG_DATA(CMSG_FIRSTHDR(&message)), count * sizeof(int));
    return got;
}

static void put(int through, size_t len) {
    struct iovec part = {bytes, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    check("sendmsg", sendmsg(through, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static void look(int fd, short events) {
    struct pollfd poll_fd = {.fd = fd, .events = events};
    check("poll", poll(&poll_fd, 1, 0));
}

/* control: a control socket, from the library to the engine. listener: the pair of a listener, from the engine to the library. */
static void run_connection(const int *control, const int *listener, int client_epoll, int server_epoll) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    struct stat status;
    int pair[2], ends[2], unread, fd = check("socket", socket(AF_INET, SOCK_STREAM, 0));

    /* The client connects: its library creates a pair, names and fills it, and sends both ends. */
    since_ns = now_ns();
    check("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    set_number(pair[0], SO_OOBINLINE, 1);
    name_end(pair[1], 's');
    set_number(pair[1], SO_SNDBUF, 1);
    set_number(pair[1], SO_PRIORITY, 4);
    long filled = check("send", send(pair[1], bytes, FILLER, MSG_DONTWAIT | MSG_NOSIGNAL));
    check("fstat", fstat(control[0], &status));
    pass(control[0], REQUEST, pair, 2);
    close(pair[0]);
    int flags = fcntl(fd, F_GETFL) | fcntl(fd, F_GETFD);
    check("dup3", dup3(pair[1], fd, flags & FD_CLOEXEC));
    close(pair[1]);
    end_turn(CLIENT, 12);

    /* Its engine checks and registers the pair, and makes it writable once the connection is established. */
    take(control[1], REQUEST, ends, 2);
    ask_name(ends[1], getsockname);
    ask_name(ends[0], getpeername);
    look(ends[0], 0);
    cookie_of(ends[1]);
    check("epoll_ctl", epoll_ctl(client_epoll, EPOLL_CTL_ADD, ends[0], &event));
    set_number(ends[1], SO_PRIORITY, 0);
    set_number(ends[1], SO_SNDBUF, 106496);
    take(ends[0], filled, NULL, 0);
    close(ends[1]);
    int client_end = ends[0];
    end_turn(CLIENT_ENGINE, 10);

    /* The server's engine creates a pair, and sends one end to the library. */
    check("socketpair", socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
    set_number(pair[0], SO_OOBINLINE, 1);
    cookie_of(pair[1]);
    check("epoll_ctl", epoll_ctl(server_epoll, EPOLL_CTL_ADD, pair[0], &event));
    pass(listener[0], RECORD, &pair[1], 1);
    close(pair[1]);
    check("FIONREAD", ioctl(listener[0], FIONREAD, &unread));
    int server_end = pair[0];
    end_turn(SERVER_ENGINE, 7);

    /* The server accepts. */
    int free_fd = check("fcntl", fcntl(listener[1], F_DUPFD_CLOEXEC, 0));
    close(free_fd);
    take(listener[1], RECORD, ends, 1);
    int accepted = ends[0];
    name_end(accepted, 's');
    end_turn(SERVER, 4);

    /* 64 bytes go from the client to the server, and back. */
    look(fd, POLLOUT);
    check("send", send(fd, bytes, DATA, MSG_NOSIGNAL));
    end_turn(CLIENT, 2);
    take(client_end, DATA, NULL, 0);
    end_turn(CLIENT_ENGINE, 1);
    put(server_end, DATA);
    end_turn(SERVER_ENGINE, 1);
    check("recv", recv(accepted, bytes, DATA, 0));
    check("send", send(accepted, bytes, DATA, MSG_NOSIGNAL));
    end_turn(SERVER, 2);
    take(server_end, DATA, NULL, 0);
    look(server_end, POLLIN | POLLRDHUP);
    end_turn(SERVER_ENGINE, 2);
    put(client_end, DATA);
    end_turn(CLIENT_ENGINE, 1);
    check("recv", recv(fd, bytes, DATA, 0));

    /* The client closes, and then the server. */
    close(fd);
    end_turn(CLIENT, 2);
    take(client_end, DATA, NULL, 0);
    close(client_end);
    end_turn(CLIENT_ENGINE, 2);
    name_end(server_end, 'E');
    shutdown(server_end, SHUT_WR);
    end_turn(SERVER_ENGINE, 2);
    recv(accepted, bytes, 1, 0);
    ask_name(accepted, getsockname);
    ask_name(accepted, getpeername);
    close(accepted);
    end_turn(SERVER, 4);
    take(server_end, DATA, NULL, 0);
    close(server_end);
    end_turn(SERVER_ENGINE, 2);
}

int main(int count, char **words) {
    double least[PARTIES + 1];
    int control[2], listener[2], client_epoll = epoll_create1(0), server_epoll = epoll_create1(0);
    if (count > 1) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(words[1]), &set);
        check("sched_setaffinity", sched_setaffinity(0, sizeof set, &set));
    }
    check("socketpair", socketpair(AF_UNIX, SOCK_SEQPACKET, 0, control));
    check("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, listener));
    for (int run = 0; run < RUNS; run++) {
        double sum = 0;
        memset(spent_ns, 0, sizeof spent_ns);
        memset(calls, 0, sizeof calls);
        for (int connection = 0; connection < CONNECTIONS; connection++) run_connection(control, listener, client_epoll, server_epoll);
        for (int party = 0; party <= PARTIES; party++) {
            double mean = party < PARTIES ? (double)spent_ns[party] / CONNECTIONS : sum;
            sum += mean;
            if (run == 0 || mean < least[party]) least[party] = mean;
        }
    }
    for (int party = 0; party < PARTIES; party++)
        printf("%-18s %3lu calls %8.1f ns\n", NAMES[party], (unsigned long)(calls[party] / CONNECTIONS), least[party]);
    printf("%-18s           %8.1f ns\n", "all together", least[PARTIES]);
    return 0;
}
