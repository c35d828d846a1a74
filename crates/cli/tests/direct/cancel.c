/* Ends threads by pthread_cancel while they wait for offloaded sockets, and passes bad pointers to waits.
 *
 *   cancel ADDRESS PORT     exchanges messages with the echo server there, and prints "all right"
 *
 * Every call that POSIX names as a cancellation point must end the thread: while it polls, while it sleeps, and if the
 * thread was cancelled before the call. The connection must carry further bytes afterwards. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROUNDS 6

static struct sockaddr_in server;
static int connection, listener, epoll, locked;
static const char *what = "connect";
static sem_t ready;
static int cleaned, early;

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s: line %d: %s (%s)\n", what, __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                          \
        }                                                                                      \
    } while (0)

/* Checks what a call returns. errno is that of the call only if it has returned -1. */
#define CHECK_RETURNS(expected, call)                                                             \
    do {                                                                                          \
        long returned = (call);                                                                   \
        if (returned != (long)(expected)) {                                                       \
            fprintf(stderr, "%s: line %d: %s returned %ld (%s)\n", what, __LINE__, #call, returned, \
                    returned == -1 ? strerror(errno) : "no error");                               \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* Exchanges short messages, so that the engine and this program use shared memory. */
static void exchange(int messages)
{
    char sent[50], received[50];
    for (int i = 0; i < messages; i++) {
        memset(sent, i + 1, sizeof sent);
        CHECK_RETURNS(sizeof sent, send(connection, sent, sizeof sent, 0));
        CHECK_RETURNS(sizeof received, recv(connection, received, sizeof received, MSG_WAITALL));
        CHECK(memcmp(sent, received, sizeof sent) == 0);
    }
}

static void wait_recv(void)
{
    char byte;
    recv(connection, &byte, 1, 0);
}

static void wait_read(void)
{
    char byte;
    if (read(connection, &byte, 1) == 2)
        return;
}

static void wait_recvfrom(void)
{
    char byte;
    recvfrom(connection, &byte, 1, 0, NULL, NULL);
}

static void wait_recvmsg(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    recvmsg(connection, &message, 0);
}

static void wait_readv(void)
{
    char byte;
    struct iovec part = {&byte, 1};
    if (readv(connection, &part, 1) == 2)
        return;
}

static void wait_poll(void)
{
    struct pollfd one = {.fd = connection, .events = POLLIN};
    poll(&one, 1, -1);
}

static void wait_ppoll(void)
{
    struct pollfd one = {.fd = connection, .events = POLLIN};
    struct timespec minute = {.tv_sec = 60};
    ppoll(&one, 1, &minute, NULL);
}

static void wait_select(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(connection, &set);
    select(connection + 1, &set, NULL, NULL, NULL);
}

static void wait_pselect(void)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(connection, &set);
    pselect(connection + 1, &set, NULL, NULL, NULL, NULL);
}

static void wait_epoll(void)
{
    struct epoll_event event;
    epoll_wait(epoll, &event, 1, -1);
}

static void wait_epoll_pwait(void)
{
    struct epoll_event event;
    sigset_t none;
    sigemptyset(&none);
    epoll_pwait(epoll, &event, 1, 60000, &none);
}

static void wait_accept(void)
{
    accept(listener, NULL, NULL);
}

static void wait_accept4(void)
{
    accept4(listener, NULL, NULL, SOCK_CLOEXEC);
}

/* The program holds a lock of another kind on this file, so this call waits. */
static void wait_fcntl(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    fcntl(locked, F_SETLKW, &lock);
}

static void note(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *waiter(void *call)
{
    pthread_cleanup_push(note, NULL);
    if (early)
        pthread_cancel(pthread_self());
    sem_post(&ready);
    for (;;)
        (*(void (**)(void))call)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel(const char *name, void (*call)(void))
{
    what = name;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *result = NULL;
        cleaned = 0;
        early = round == 0;
        exchange(8);
        CHECK(pthread_create(&thread, NULL, waiter, &call) == 0);
        while (sem_wait(&ready) != 0)
            ;
        /* From at once, while the call polls, to later, while it sleeps. */
        usleep(round * 200);
        CHECK(early || pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && cleaned == 1);
        exchange(2);
    }
}

/* A thread that always finds bytes must end all the same. */
static void *reader(void *unused)
{
    char byte;
    sem_post(&ready);
    for (;;)
        if (recv(connection, &byte, 1, 0) == 1)
            send(connection, &byte, 1, 0);
    return unused;
}

static void cancel_busy(void)
{
    what = "recv with bytes";
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        void *result = NULL;
        int fresh = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        CHECK(connect(fresh, (struct sockaddr *)&server, sizeof server) == 0);
        CHECK(setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        CHECK(dup2(fresh, connection) == connection && close(fresh) == 0);
        exchange(40);
        CHECK_RETURNS(10, send(connection, "0123456789", 10, 0));
        CHECK(pthread_create(&thread, NULL, reader, NULL) == 0);
        while (sem_wait(&ready) != 0)
            ;
        usleep(round * 600);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
}

/* The kernel answers EFAULT, or the first fault it finds. */
static void bad_pointers(void)
{
    what = "bad pointers";
    void *bad = (void *)16;
    struct pollfd one = {.fd = connection, .events = POLLIN};
    struct epoll_event event;
    for (int round = 0; round < ROUNDS; round++) {
        exchange(8);
        CHECK(poll(bad, 1, 1) == -1 && errno == EFAULT);
        CHECK(ppoll(bad, 1, NULL, NULL) == -1 && errno == EFAULT);
        CHECK(ppoll(&one, 1, &(struct timespec){0, 1000}, bad) == -1 && errno == EFAULT);
#ifdef __GLIBC__
        /* musl reads these structures itself, so the program would get SIGSEGV. */
        CHECK(recvmsg(connection, bad, MSG_DONTWAIT) == -1 && errno == EFAULT);
        CHECK(sendmsg(connection, bad, 0) == -1 && errno == EFAULT);
        CHECK(sendmmsg(connection, bad, 1, 0) == -1 && errno == EFAULT);
#endif
        CHECK(select(connection + 1, bad, NULL, NULL, &(struct timeval){0, 1}) == -1 && errno == EFAULT);
        CHECK(pselect(connection + 1, NULL, bad, NULL, NULL, NULL) == -1 && errno == EFAULT);
        CHECK(send(connection, "x", 1, 0) == 1);
        CHECK(poll(&one, 1, -1) == 1);
        CHECK(epoll_wait(epoll, bad, 1, -1) == -1 && errno == EFAULT);
        CHECK(epoll_pwait(epoll, &event, 0, 0, NULL) == -1 && errno == EINVAL);
        char byte;
        CHECK(recv(connection, bad, 1, 0) == -1 && errno == EFAULT);
        CHECK(send(connection, bad, 1, 0) == -1 && errno == EFAULT);
        CHECK(recv(connection, &byte, 1, 0) == 1 && byte == 'x');
    }
}

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*call)(void);
    } calls[] = {
        {"recv", wait_recv},       {"read", wait_read},     {"recvfrom", wait_recvfrom}, {"recvmsg", wait_recvmsg},
        {"readv", wait_readv},     {"poll", wait_poll},     {"ppoll", wait_ppoll},       {"select", wait_select},
        {"pselect", wait_pselect}, {"epoll_wait", wait_epoll}, {"epoll_pwait", wait_epoll_pwait},
        {"accept", wait_accept},   {"accept4", wait_accept4}, {"fcntl", wait_fcntl},
    };
    CHECK(count == 3);
    const char *only = getenv("ONLY");
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(arguments[2]));
    CHECK(inet_pton(AF_INET, arguments[1], &server.sin_addr) == 1);
    int one = 1;
    connection = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(connection, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr = server.sin_addr};
    CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 5) == 0);
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    locked = memfd_create("locked", MFD_CLOEXEC);
    CHECK(locked >= 0 && fcntl(locked, F_OFD_SETLK, &lock) == 0);
    CHECK(sem_init(&ready, 0, 0) == 0);
    exchange(40);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!only || strcmp(only, calls[i].name) == 0)
            cancel(calls[i].name, calls[i].call);
    if (!only || strcmp(only, "bad") == 0)
        bad_pointers();
    if (!only || strcmp(only, "busy") == 0)
        cancel_busy();
    puts("all right");
    return 0;
}
