/* Receives with MSG_WAITALL into memory of the program, and checks every byte. Prints "all right".
 *
 *   whole ADDRESS PORT ROUNDS
 *
 * A thread sends in pieces, with pauses. Each round has a new connection and another way in which receives may end. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { TOTAL = 200000, MOST = 40000, POISON = 0xa5 };
enum { FULL, SIGNALS, TIMEOUTS, NONBLOCKING, REPLACED, WAYS };

static struct sockaddr_in address;
static int rounds, round_number, connection;
static volatile int ended;

#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "round %d, line %d: %s (%s)\n", round_number, __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                                          \
        }                                                                                                      \
    } while (0)

/* No byte is POISON. */
static unsigned char byte_at(uint64_t index)
{
    return (index * 0x9e3779b97f4a7c15u >> 56) % POISON;
}

static void *source(void *none)
{
    static unsigned char bytes[MOST];
    unsigned seed = 1;
    for (int number = 0; number < rounds; number++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        for (int sent = 0; sent < TOTAL;) {
            int len = 1 + rand_r(&seed) % MOST;
            len = len < TOTAL - sent ? len : TOTAL - sent;
            for (int i = 0; i < len; i++)
                bytes[i] = byte_at(sent + i);
            /* If the sink has closed the connection, no byte arrives any more. */
            for (int done = 0; done < len;) {
                int part = send(fd, bytes + done, len - done, MSG_NOSIGNAL);
                if (part < 0)
                    break;
                done += part;
            }
            sent += len;
            if (rand_r(&seed) % 4 == 0)
                usleep(rand_r(&seed) % (number % WAYS == TIMEOUTS ? 8000 : 300));
        }
        CHECK(shutdown(fd, SHUT_WR) == 0 || number % WAYS == REPLACED);
        while (recv(fd, bytes, 1, 0) > 0)
            ;
        close(fd);
    }
    return none;
}

/* Interrupts the receives of a thread, or gives the number of the connection to another file. */
static void *disturb(void *sink)
{
    static unsigned char poison[MOST];
    unsigned seed = round_number;
    int pair[2];
    if (round_number % WAYS == SIGNALS) {
        while (!ended) {
            usleep(100);
            pthread_kill(*(pthread_t *)sink, SIGUSR1);
        }
        return NULL;
    }
    memset(poison, POISON, MOST);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(send(pair[1], poison, MOST, 0) == MOST);
    close(pair[1]);
    usleep(rand_r(&seed) % 500);
    CHECK(dup2(pair[0], connection) == connection);
    close(pair[0]);
    return NULL;
}

static void receive(void)
{
    static unsigned char bytes[MOST];
    int way = round_number % WAYS, received = 0;
    unsigned seed = round_number;
    struct timeval limit = {.tv_usec = 2000};
    if (way == TIMEOUTS)
        CHECK(setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    /* The connection ends with the last byte. */
    if (way == FULL && round_number % 2 == 0)
        CHECK(shutdown(connection, SHUT_WR) == 0);
    if (way == NONBLOCKING)
        CHECK(fcntl(connection, F_SETFL, O_NONBLOCK) == 0);
    for (;;) {
        int wanted = 1 + rand_r(&seed) % MOST;
        int len = recv(connection, bytes, wanted, MSG_WAITALL);
        if (len < 0) {
            CHECK((errno == EINTR && way == SIGNALS) || (errno == EAGAIN && (way == TIMEOUTS || way == NONBLOCKING)));
            continue;
        }
        /* A receive that begins after the connection was replaced reads the other file. */
        if (way == REPLACED && len > 0 && bytes[0] == POISON)
            return;
        for (int i = 0; i < len; i++)
            CHECK(bytes[i] == byte_at(received + i));
        received += len;
        CHECK(len == wanted || received == TOTAL || way != FULL);
        if (len == 0)
            break;
    }
    CHECK(received == TOTAL || way == REPLACED);
}

static void nothing(int signal)
{
    (void)signal;
}

int main(int words, char **arguments)
{
    pthread_t self = pthread_self(), sending, disturbing;
    struct sigaction action = {.sa_handler = nothing};
    CHECK(words == 4 && sigaction(SIGUSR1, &action, NULL) == 0);
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(arguments[2]));
    rounds = atoi(arguments[3]);
    CHECK(inet_pton(AF_INET, arguments[1], &address.sin_addr) == 1);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
    CHECK(pthread_create(&sending, NULL, source, NULL) == 0);
    for (; round_number < rounds; round_number++) {
        int way = round_number % WAYS, disturbed = way == SIGNALS || way == REPLACED;
        CHECK((connection = accept(listener, NULL, NULL)) >= 0);
        ended = 0;
        if (disturbed)
            CHECK(pthread_create(&disturbing, NULL, disturb, &self) == 0);
        receive();
        ended = 1;
        if (disturbed)
            CHECK(pthread_join(disturbing, NULL) == 0);
        close(connection);
    }
    CHECK(pthread_join(sending, NULL) == 0);
    puts("all right");
    return 0;
}
