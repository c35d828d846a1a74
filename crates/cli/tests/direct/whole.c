/* Receives with MSG_WAITALL, and prints how the calls end. On an engine, this must be the same as on the kernel.
 *
 *   whole [CASE]     connects two sockets of this process, and runs all cases or one of them
 *
 * One thread receives, and another one sends and interferes. Waits for conditions have no time limit of their own. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PART = 1000, WHOLE = 5000, LARGE = 600 << 10, ROUNDS = 12 };

static const char *what = "start";
static int receiver, sender;
static uint64_t sent, received;
static unsigned char buffer[LARGE];
static volatile int done;
static pthread_t receiving;

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "%s: line %d: %s (%s)\n", what, __LINE__, #condition, strerror(errno));  \
            _exit(1);                                                                                \
        }                                                                                            \
    } while (0)

static unsigned char byte_at(uint64_t index)
{
    return (index * 0x9e3779b97f4a7c15u) >> 56;
}

static void pause_us(long microseconds)
{
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void send_bytes(size_t len)
{
    static unsigned char bytes[64 << 10];
    while (len > 0) {
        size_t part = len < sizeof bytes ? len : sizeof bytes;
        for (size_t i = 0; i < part; i++)
            bytes[i] = byte_at(sent + i);
        ssize_t done = send(sender, bytes, part, MSG_NOSIGNAL);
        CHECK(done > 0);
        sent += done;
        len -= done;
    }
}

/* Checks what a receive has returned, and prints it. */
static void report(const char *name, ssize_t len)
{
    int error = errno;
    for (ssize_t i = 0; i < len; i++)
        CHECK(buffer[i] == byte_at(received + i));
    if (len > 0)
        received += len;
    printf("%s: %s: %zd%s%s\n", what, name, len, len < 0 ? " " : "", len < 0 ? strerrorname_np(error) : "");
}

/* Receives without a line of output if all bytes came. */
static void receive_all(size_t len, int flags)
{
    if (len == 0)
        return;
    ssize_t part = recv(receiver, buffer, len, flags);
    if (part != (ssize_t)len)
        report("too few", part);
    CHECK(part == (ssize_t)len);
    for (size_t i = 0; i < len; i++)
        CHECK(buffer[i] == byte_at(received + i));
    received += len;
}

static void connect_both(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
    sender = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(sender, (struct sockaddr *)&address, len) == 0);
    receiver = accept(listener, NULL, NULL);
    CHECK(receiver >= 0 && close(listener) == 0);
    CHECK(setsockopt(sender, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    sent = received = 0;
    /* The engine shares memory with connections that are used. */
    for (int i = 0; i < 20; i++) {
        char bytes[4096];
        send_bytes(sizeof bytes);
        CHECK(recv(receiver, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        received += sizeof bytes;
    }
}

static void disconnect(void)
{
    close(receiver);
    close(sender);
}

/* A thread that interferes, with the receiver's buffer empty at its start. */
static pthread_t interfere(void *(*call)(void *))
{
    pthread_t thread;
    memset(buffer, byte_at(received + PART - 1) + 1, WHOLE);
    done = 0;
    receiving = pthread_self();
    CHECK(pthread_create(&thread, NULL, call, NULL) == 0);
    return thread;
}

static void join(pthread_t thread)
{
    done = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Sends a part, and waits until the receiver has it in its buffer. */
static void send_part(void)
{
    volatile unsigned char *last = buffer + PART - 1;
    unsigned char expected = byte_at(received + PART - 1);
    send_bytes(PART);
    while (*last != expected)
        pause_us(100);
}

static void *send_slowly(void *unused)
{
    (void)unused;
    unsigned seed = 1;
    for (size_t left = 200 * 1024; left > 0;) {
        size_t part = 1 + rand_r(&seed) % 4000;
        part = part < left ? part : left;
        send_bytes(part);
        left -= part;
        if (rand_r(&seed) % 2)
            pause_us(rand_r(&seed) % 1500);
    }
    return NULL;
}

static void *send_large(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++)
        send_bytes(LARGE);
    return NULL;
}

static void lengths(void)
{
    pthread_t thread = interfere(send_slowly);
    receive_all(200 * 1024, MSG_WAITALL);
    join(thread);
    thread = interfere(send_large);
    for (int i = 0; i < ROUNDS; i++)
        receive_all(LARGE, MSG_WAITALL);
    join(thread);
    thread = interfere(send_large);
    for (size_t left = (size_t)LARGE * ROUNDS, len = 1; left > 0; len = len * 3 % 99991) {
        len = len < left ? len : left;
        receive_all(len, MSG_WAITALL | (len % 2 ? MSG_NOSIGNAL : 0));
        left -= len;
    }
    join(thread);
    puts("all lengths");
}

static void parts(void)
{
    unsigned char *to = buffer;
    struct iovec parts[7] = {{to, 100}, {to, 0}, {to + 100, 1}, {to + 101, 70000}, {to + 70101, 9899}, {NULL, 0}, {to + 80000, 120 * 1024}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 7, .msg_flags = -1};
    parts[6].iov_len = 200 * 1024 - 80000;
    pthread_t thread = interfere(send_slowly);
    report("recvmsg", recvmsg(receiver, &message, MSG_WAITALL));
    CHECK(message.msg_flags == 0);
    join(thread);
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    thread = interfere(send_slowly);
    report("recvfrom", recvfrom(receiver, buffer, 200 * 1024, MSG_WAITALL, (struct sockaddr *)&address, &len));
    CHECK(len == 0);
    join(thread);
}

static void *send_part_and_end(void *unused)
{
    (void)unused;
    send_part();
    CHECK(shutdown(sender, SHUT_WR) == 0);
    return NULL;
}

static void end(void)
{
    pthread_t thread = interfere(send_part_and_end);
    report("at the end", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    report("behind the end", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    join(thread);
}

static void *send_part_and_reset(void *unused)
{
    (void)unused;
    struct linger linger = {1, 0};
    send_part();
    CHECK(setsockopt(sender, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0 && close(sender) == 0);
    return NULL;
}

static void reset(void)
{
    pthread_t thread = interfere(send_part_and_reset);
    report("at the reset", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    report("after the reset", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    report("after the error", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    join(thread);
    sender = -1;
}

static void limit(long microseconds)
{
    struct timeval time = {0, microseconds};
    CHECK(setsockopt(receiver, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
}

static void *send_only_a_part(void *unused)
{
    (void)unused;
    send_part();
    return NULL;
}

/* Sends until the receive has returned. The kernel's TCP does not count waits shorter than its clock's ticks. */
static void *send_drops(void *unused)
{
    (void)unused;
    while (!done) {
        send_bytes(1);
        pause_us(10000);
    }
    return NULL;
}

static void timeouts(void)
{
    limit(50000);
    report("no bytes", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    pthread_t thread = interfere(send_only_a_part);
    report("a part", recv(receiver, buffer, WHOLE, MSG_WAITALL));
    join(thread);
    /* The limit is that of the whole call. */
    thread = interfere(send_drops);
    ssize_t len = recv(receiver, buffer, LARGE, MSG_WAITALL);
    CHECK(len > 0 && len < LARGE);
    join(thread);
    for (ssize_t i = 0; i < len; i++)
        CHECK(buffer[i] == byte_at(received + i));
    received += len;
    limit(0);
    receive_all(sent - received, MSG_WAITALL);
}

static volatile int handled;

static void on_signal(int signal)
{
    (void)signal;
    handled++;
}

static long pause_before_signal;

/* Sends a part, then a single signal. */
static void *send_part_and_signal(void *unused)
{
    (void)unused;
    send_part();
    pause_us(pause_before_signal);
    CHECK(pthread_kill(receiving, SIGUSR1) == 0);
    return NULL;
}

/* Sends without long pauses until the receive has returned, and a single signal meanwhile. */
static void *signal_in_a_flow(void *unused)
{
    (void)unused;
    for (int i = 0; !done; i++) {
        send_bytes(1);
        pause_us(50);
        if (i == 50)
            CHECK(pthread_kill(receiving, SIGUSR1) == 0);
    }
    return NULL;
}

/* Sends a signal before the first byte, and then the whole message. */
static void *signal_and_send(void *unused)
{
    (void)unused;
    pause_us(30000);
    CHECK(pthread_kill(receiving, SIGUSR1) == 0);
    while (!handled)
        pause_us(100);
    pause_us(10000);
    if (!done)
        send_bytes(WHOLE);
    return NULL;
}

/* An ignored signal has no effect. */
static void *send_ignored_signal(void *unused)
{
    (void)unused;
    send_part();
    CHECK(pthread_kill(receiving, SIGUSR2) == 0 && pthread_kill(receiving, SIGWINCH) == 0);
    pause_us(10000);
    send_bytes(WHOLE - PART);
    return NULL;
}

static void signals(void)
{
    signal(SIGUSR2, SIG_IGN);
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = restarts ? SA_RESTART : 0};
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        for (pause_before_signal = 1; pause_before_signal < 100000; pause_before_signal *= 10) {
            pthread_t thread = interfere(send_part_and_signal);
            handled = 0;
            report("signal after a part", recv(receiver, buffer, WHOLE, MSG_WAITALL));
            join(thread);
            CHECK(handled == 1);
        }
        pthread_t thread = interfere(signal_in_a_flow);
        handled = 0;
        ssize_t len = recv(receiver, buffer, LARGE, MSG_WAITALL);
        CHECK(len > 0 && len < LARGE && handled == 1);
        received += len;
        join(thread);
        receive_all(sent - received, MSG_WAITALL);
        thread = interfere(signal_and_send);
        handled = 0;
        report("signal before bytes", recv(receiver, buffer, WHOLE, MSG_WAITALL));
        join(thread);
        /* The other thread sends nothing if the call has ended in time. */
        receive_all(sent - received, MSG_WAITALL);
        thread = interfere(send_ignored_signal);
        report("ignored signal", recv(receiver, buffer, WHOLE, MSG_WAITALL));
        join(thread);
    }
}

static void await_bytes(int len)
{
    for (int bytes = 0; bytes < len; pause_us(100))
        CHECK(ioctl(receiver, FIONREAD, &bytes) == 0);
}

static void unblocked(void)
{
    for (int i = 0; i < 2; i++) {
        int flags = i ? MSG_WAITALL : MSG_WAITALL | MSG_DONTWAIT;
        CHECK(fcntl(receiver, F_SETFL, i ? O_NONBLOCK : 0) == 0);
        report("without bytes", recv(receiver, buffer, WHOLE, flags));
        send_bytes(PART);
        await_bytes(PART);
        report("with bytes", recv(receiver, buffer, WHOLE, flags));
    }
    CHECK(fcntl(receiver, F_SETFL, 0) == 0);
}

static void *send_in_parts(void *unused)
{
    (void)unused;
    send_bytes(PART);
    pause_us(5000);
    send_bytes(WHOLE - PART);
    return NULL;
}

static void *send_rest(void *unused)
{
    (void)unused;
    send_part();
    pause_us(5000);
    send_bytes(WHOLE - PART);
    return NULL;
}

static void discarded(void)
{
    pthread_t thread = interfere(send_in_parts);
    ssize_t len = recv(receiver, NULL, WHOLE, MSG_WAITALL | MSG_TRUNC);
    CHECK(len == WHOLE);
    received += len;
    join(thread);
    puts("discarded");
}

/* Prints how many bytes a call has seen, which a later receive takes. */
static void report_peeked(const char *name, ssize_t len)
{
    uint64_t before = received;
    report(name, len);
    received = before;
}

static void peeked(void)
{
    unsigned char *to = buffer;
    struct iovec parts[2] = {{to, PART / 2}, {to + PART / 2, WHOLE - PART / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    for (int i = 0; i < 3; i++) {
        pthread_t thread = interfere(send_rest);
        report_peeked("peek", i ? recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL) : recvmsg(receiver, &message, MSG_PEEK | MSG_WAITALL));
        join(thread);
        receive_all(WHOLE, MSG_WAITALL);
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pause_before_signal = 5000;
    pthread_t thread = interfere(send_part_and_signal);
    report_peeked("signal", recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL));
    join(thread);
    limit(50000);
    report_peeked("timeout", recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL));
    receive_all(PART, MSG_WAITALL);
    report_peeked("no bytes", recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL));
    limit(0);
    thread = interfere(send_part_and_end);
    report_peeked("at the end", recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL));
    join(thread);
    receive_all(PART, MSG_WAITALL);
    report_peeked("behind the end", recv(receiver, buffer, WHOLE, MSG_PEEK | MSG_WAITALL));
}

static unsigned sum, total;

static void *receive_and_sum(void *unused)
{
    unsigned char *own = malloc(7777);
    ssize_t len;
    (void)unused;
    do {
        len = recv(receiver, own, 7777, MSG_WAITALL);
        CHECK(len >= 0);
        for (ssize_t i = 0; i < len; i++)
            __atomic_fetch_add(&sum, own[i], __ATOMIC_RELAXED);
        __atomic_fetch_add(&total, len, __ATOMIC_RELAXED);
    } while (len == 7777);
    free(own);
    return NULL;
}

static void threads(void)
{
    pthread_t threads[3];
    unsigned expected = 0;
    sum = total = 0;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, receive_and_sum, NULL) == 0);
    uint64_t before = sent;
    send_slowly(NULL);
    send_bytes(LARGE);
    CHECK(shutdown(sender, SHUT_WR) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (uint64_t i = before; i < sent; i++)
        expected += byte_at(i);
    CHECK(total == sent - before && sum == expected);
    puts("threads");
}

/* A child gets the socket during the receive. */
static void *fork_meanwhile(void *unused)
{
    (void)unused;
    send_part();
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    send_bytes(LARGE - PART);
    return NULL;
}

static int pass(int fd)
{
    int ends[2], passed;
    char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1);
    memcpy(&passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof passed);
    close(ends[0]);
    close(ends[1]);
    return passed;
}

/* The descriptor is passed to another one during the receive. */
static void *pass_meanwhile(void *unused)
{
    (void)unused;
    send_part();
    int passed = pass(receiver);
    send_bytes(LARGE / 2 - PART);
    close(passed);
    send_bytes(LARGE / 2);
    return NULL;
}

/* A wait for events leaves the receive ring. */
static void *poll_meanwhile(void *unused)
{
    (void)unused;
    send_part();
    for (int i = 0; i < 100; i++) {
        int bytes;
        ioctl(receiver, FIONREAD, &bytes);
        send_bytes((LARGE - PART) / 100);
        fd_set set;
        FD_ZERO(&set);
        FD_SET(receiver, &set);
        struct timeval none = {0, 0};
        select(receiver + 1, &set, NULL, NULL, &none);
    }
    send_bytes((LARGE - PART) % 100);
    return NULL;
}

/* So many connections are used that the engine takes the memory of this one, which is not used for a second. */
static void *crowd_meanwhile(void *unused)
{
    (void)unused;
    enum { CROWD = 36 };
    int crowd[CROWD][2];
    send_part();
    int own[2] = {receiver, sender};
    uint64_t counts[2] = {received, sent};
    pause_us(1100000);
    for (int i = 0; i < CROWD; i++) {
        connect_both();
        crowd[i][0] = receiver, crowd[i][1] = sender;
    }
    receiver = own[0], sender = own[1];
    received = counts[0], sent = counts[1];
    send_bytes(LARGE - PART);
    for (int i = 0; i < CROWD; i++)
        CHECK(close(crowd[i][0]) == 0 && close(crowd[i][1]) == 0);
    return NULL;
}

static void shared(void)
{
    void *(*calls[])(void *) = {poll_meanwhile, crowd_meanwhile, fork_meanwhile, pass_meanwhile};
    for (int i = 0; i < 4; i++) {
        pthread_t thread = interfere(calls[i]);
        receive_all(LARGE, MSG_WAITALL);
        join(thread);
    }
    puts("shared");
}

static void *receive_until_cancelled(void *unused)
{
    (void)unused;
    recv(receiver, buffer, WHOLE, MSG_WAITALL);
    return NULL;
}

static void cancelled(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        void *result;
        pthread_t thread = interfere(receive_until_cancelled);
        send_part();
        pause_us(i * 100);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        received += PART;
        send_bytes(WHOLE);
        receive_all(WHOLE, MSG_WAITALL);
    }
    puts("cancelled");
}

static int how, other[2];

/* Closes the descriptor, whose number then is that of another socket with bytes. */
static void *replace_meanwhile(void *unused)
{
    (void)unused;
    static const char foreign[WHOLE] = "foreign";
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0 && write(other[1], foreign, WHOLE) == WHOLE);
    send_part();
    pause_us(how * 37 % 400);
    if (how % 3 == 0)
        CHECK(close(receiver) == 0);
    if (how % 3 == 1)
        CHECK(close_range(receiver, receiver, 0) == 0);
    /* Once the number is free, it is the first that F_DUPFD tries. */
    int number = how % 3 == 2 ? dup2(other[0], receiver) : fcntl(other[0], F_DUPFD, receiver);
    CHECK(number == receiver && close(other[0]) == 0);
    pause_us(how * 53 % 700);
    CHECK(shutdown(sender, SHUT_WR) == 0);
    return NULL;
}

static void replaced(void)
{
    for (how = 0; how < 8 * ROUNDS; how++) {
        if (how > 0)
            connect_both();
        pthread_t thread = interfere(replace_meanwhile);
        ssize_t len = recv(receiver, buffer, WHOLE, MSG_WAITALL);
        join(thread);
        if (len != PART)
            report("replaced", len);
        CHECK(len == PART);
        CHECK(ioctl(receiver, FIONREAD, &len) == 0 && (int)len == WHOLE);
        close(other[1]);
        disconnect();
    }
    puts("replaced");
    receiver = sender = -1;
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } cases[] = {
        {"lengths", lengths}, {"parts", parts}, {"end", end}, {"reset", reset}, {"timeouts", timeouts}, {"signals", signals},
        {"unblocked", unblocked}, {"discarded", discarded}, {"peeked", peeked}, {"threads", threads}, {"shared", shared}, {"cancelled", cancelled},
        {"replaced", replaced},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (count > 1 && strcmp(arguments[1], cases[i].name) != 0)
            continue;
        what = cases[i].name;
        connect_both();
        cases[i].call();
        disconnect();
        fflush(stdout);
    }
    return 0;
}
