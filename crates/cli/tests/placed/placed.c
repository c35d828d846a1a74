/* Receives into buffers that the engine may fill directly, and checks that it never writes to a buffer that was given back.
 *
 *   placed source ADDRESS PORT BURSTS [lossy] sends bursts of different lengths, and waits for answers to most of them, but not for
 *                                             long if the sink may lose bytes
 *   placed sink ADDRESS PORT CASE             receives them as CASE says, and prints "all right"
 *
 * After each receive, the sink checks the bytes and fills the whole buffer with poison. It finds the poison before the buffer's next use. */
#define _GNU_SOURCE
#include "inlane_offload.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 << 10, POISON = 0xa5 };

static struct sockaddr_in address;
static const char *what = "start";
static int connection;
static uint64_t received;
static unsigned sum;

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "%s: line %d: %s (%s)\n", what, __LINE__, #condition, strerror(errno));       \
            _exit(1);                                                                                     \
        }                                                                                                 \
    } while (0)

static unsigned char byte_at(uint64_t index)
{
    return (index * 0x9e3779b97f4a7c15u) >> 56;
}

/* The length of a burst. The sink answers a burst once it has all of it, unless the next burst follows at once. */
static uint64_t length_of(unsigned burst)
{
    return 1 + (burst * 2654435761u >> 8) % (burst % 3 ? 96 << 10 : 8 << 10);
}

static int is_answered(unsigned burst)
{
    return burst % 5 != 0;
}

static void limit(int microseconds)
{
    struct timeval time = {.tv_usec = microseconds};
    CHECK(setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
}

static void source(unsigned bursts, int lossy)
{
    static unsigned char bytes[96 << 10];
    uint64_t sent = 0;
    char answer;
    CHECK(connect(connection, (struct sockaddr *)&address, sizeof address) == 0);
    limit(lossy ? 10000 : 0);
    for (unsigned number = 0; number < bursts; number++) {
        uint64_t len = length_of(number);
        for (uint64_t i = 0; i < len; i++)
            bytes[i] = byte_at(sent + i);
        for (uint64_t done = 0; done < len;) {
            ssize_t part = send(connection, bytes + done, len - done, 0);
            CHECK(part > 0);
            done += part;
        }
        sent += len;
        if (is_answered(number))
            CHECK(recv(connection, &answer, 1, 0) == 1 || (lossy && errno == EAGAIN));
    }
    CHECK(shutdown(connection, SHUT_WR) == 0);
    limit(0);
    do
        CHECK(recv(connection, &answer, 1, 0) == 1);
    while (lossy && answer != 'e');
    CHECK(answer == 'e');
}

/* The sink receives this burst, whose bytes begin at index `end`. */
static unsigned burst;
static uint64_t end;

/* Counts received bytes, and answers the bursts that are complete. */
static void count(uint64_t len)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    received += len;
    for (; received >= end + length_of(burst); burst++) {
        end += length_of(burst);
        if (is_answered(burst))
            CHECK(send(connection, "a", 1, 0) == 1);
    }
    pthread_mutex_unlock(&mutex);
}

/* The buffers are used in turn. Each is full of poison until its next use. */
enum { BUFFERS = 4 };
static __thread unsigned char *buffers[BUFFERS];

static void poison(unsigned char *buffer)
{
    memset(buffer, POISON, SIZE);
}

static void check_poison(const unsigned char *buffer)
{
    for (int i = 0; i < SIZE; i += 8) {
        uint64_t word;
        memcpy(&word, buffer + i, 8);
        CHECK(word == 0x0101010101010101u * POISON);
    }
}

static unsigned char *buffer(void)
{
    static __thread unsigned next;
    unsigned char **one = &buffers[++next % BUFFERS];
    if (*one)
        check_poison(*one);
    /* The buffers are freed and allocated again at times. */
    if (next % 61 == 0) {
        inlane_offload_buffer_free(*one);
        *one = NULL;
    }
    if (!*one)
        CHECK(*one = inlane_offload_buffer(SIZE));
    return *one;
}

/* Checks the bytes of a receive that has returned `len`, and gives the buffer another use. */
static void check(unsigned char *buffer, ssize_t len, int ordered)
{
    for (ssize_t i = 0; i < len; i++) {
        if (ordered)
            CHECK(buffer[i] == byte_at(received + i));
        __atomic_fetch_add(&sum, buffer[i], __ATOMIC_RELAXED);
    }
    poison(buffer);
    if (len > 0)
        count(len);
}

/* Receives until the end of the stream. */
static void receive(void)
{
    ssize_t len;
    do {
        unsigned char *to = buffer();
        len = recv(connection, to + received % 100, SIZE - received % 100 * 2, 0);
        CHECK(len >= 0 || errno == EAGAIN || errno == EINTR);
        if (len > 0)
            memmove(to, to + received % 100, len);
        check(to, len, 1);
    } while (len != 0);
}

/* Receives whole bursts, or as much as fits into a buffer. */
static void whole(void)
{
    ssize_t len;
    do {
        unsigned char *to = buffer();
        uint64_t rest = end + length_of(burst) - received;
        size_t wanted = rest < SIZE ? rest : SIZE;
        len = recv(connection, to, wanted, MSG_WAITALL);
        CHECK(len == (ssize_t)wanted || len == 0);
        check(to, len, 1);
    } while (len != 0);
}

static void on_alarm(int signal)
{
    (void)signal;
}

static void interrupt(int microseconds)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void peek(void)
{
    for (;;) {
        unsigned char *to = buffer();
        ssize_t len = recv(connection, to, SIZE, 0);
        CHECK(len >= 0);
        check(to, len, 1);
        if (len == 0)
            return;
        to = buffer();
        len = recv(connection, to, SIZE, MSG_PEEK);
        CHECK(len >= 0);
        if (len == 0)
            return;
        for (ssize_t i = 0; i < len; i++)
            CHECK(to[i] == byte_at(received + i));
        check(to, 0, 1);
        len = read(connection, to, SIZE);
        CHECK(len > 0);
        check(to, len, 1);
    }
}

/* Gives all buffers of a thread that ends another use. `ended` has room for them. */
static void leave(void *ended)
{
    for (int i = 0; i < BUFFERS; i++)
        if (buffers[i])
            poison(buffers[i]);
    memcpy(ended, buffers, sizeof buffers);
}

static void check_and_free(unsigned char **ended)
{
    for (int i = 0; i < BUFFERS; i++) {
        if (ended[i])
            check_poison(ended[i]);
        inlane_offload_buffer_free(ended[i]);
        ended[i] = NULL;
    }
}

/* Receives until the end, or until the thread is cancelled. */
static void *reader(void *ended)
{
    ssize_t len;
    int before;
    pthread_cleanup_push(leave, ended);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    do {
        unsigned char *to = buffer();
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
        len = recv(connection, to, SIZE, 0);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        CHECK(len >= 0);
        check(to, len, 0);
    } while (len != 0);
    pthread_cleanup_pop(1);
    return NULL;
}

static void readers(void)
{
    pthread_t threads[3];
    unsigned char *ended[3][BUFFERS];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, reader, ended[i]) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 3; i++)
        check_and_free(ended[i]);
}

/* glibc 2.36 ends a thread in recv although the kernel has already taken bytes for it, so bytes are lost. */
static void cancel(void)
{
    unsigned char *ended[2][BUFFERS] = {0};
    void *result;
    unsigned seed = 1;
    for (unsigned round = 0;; round++) {
        pthread_t thread;
        /* The buffers of the thread before are checked while this one receives. */
        unsigned char **own = ended[round % 2], **last = ended[(round + 1) % 2];
        CHECK(pthread_create(&thread, NULL, reader, own) == 0);
        usleep(rand_r(&seed) % 2000);
        check_and_free(last);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        if (result != PTHREAD_CANCELED)
            break;
    }
}

/* Children have the socket, and another descriptor refers to it. */
static void shared(void)
{
    ssize_t len;
    int other = -1;
    do {
        if (received > 1 << 20 && other < 0) {
            other = dup(connection);
            pid_t child = fork();
            if (child == 0) {
                /* The pages of these buffers are the parent's, too. */
                for (int i = 0; i < BUFFERS; i++)
                    inlane_offload_buffer_free(buffers[i]);
                usleep(20000);
                _exit(0);
            }
            CHECK(other >= 0 && child > 0);
        }
        unsigned char *to = buffer();
        len = recv(other >= 0 && received % 2 ? other : connection, to, SIZE, 0);
        CHECK(len >= 0);
        check(to, len, 1);
    } while (len != 0);
    CHECK(wait(NULL) > 0);
}

int main(int words, char **arguments)
{
    CHECK(words >= 5);
    what = arguments[4];
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(arguments[3]));
    CHECK(inet_pton(AF_INET, arguments[2], &address.sin_addr) == 1);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (strcmp(arguments[1], "source") == 0) {
        connection = listener;
        source(atoi(arguments[4]), words > 5);
        return 0;
    }
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    /* The first buffer asks for the memory, before there is a connection. */
    inlane_offload_buffer_free(inlane_offload_buffer(1));
    puts("ready");
    fflush(stdout);
    connection = accept(listener, NULL, NULL);
    CHECK(connection >= 0);
    const char *name = arguments[4];
    if (strcmp(name, "timeouts") == 0)
        limit(500);
    if (strcmp(name, "signals") == 0)
        interrupt(150);
    if (strcmp(name, "peek") == 0)
        peek();
    else if (strcmp(name, "whole") == 0)
        whole();
    else if (strcmp(name, "readers") == 0)
        readers();
    else if (strcmp(name, "cancel") == 0)
        cancel();
    else if (strcmp(name, "shared") == 0)
        shared();
    else
        receive();
    CHECK(send(connection, "e", 1, 0) == 1);
    unsigned expected = 0;
    for (uint64_t i = 0; i < received; i++)
        expected += byte_at(i);
    CHECK(strcmp(name, "cancel") == 0 || (received == end && sum == expected));
    printf("all right %llu %u\n", (unsigned long long)received, sum);
    return 0;
}
