/* Changes epoll registrations of offloaded connections at random, and compares them and their events with a model.
 *
 *   registrations ADDRESS PORT SEED     exchanges messages with the echo server there, and prints "all right"
 *
 * The library finds some events in shared memory. /proc/self/fdinfo shows the registrations that the kernel has. They must
 * equal the model after each call. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS 6
#define STEPS 30000

/* A connection, and the registration that the program expects. */
static struct {
    int fd, registered, unread;
    uint32_t events;
    uint64_t data;
} connections[CONNECTIONS];

static struct sockaddr_in server;
static int epoll;
static long step;
static uint64_t next_data;

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "step %ld: line %d: %s (%s)\n", step, __LINE__, #condition, strerror(errno)); \
            _exit(1);                                                                                 \
        }                                                                                             \
    } while (0)

static void open_connection(int index)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&server, sizeof server) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    memset(&connections[index], 0, sizeof connections[index]);
    connections[index].fd = fd;
}

/* Returns the number of registrations in which those in `file` differ from the model. */
static int differences_in(FILE *file)
{
    char line[256];
    int found = 0, expected = 0, wrong = 0;
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        int fd, same = 0;
        unsigned events;
        unsigned long long data;
        if (sscanf(line, "tfd: %d events: %x data: %llx", &fd, &events, &data) != 3)
            continue;
        found++;
        for (int i = 0; i < CONNECTIONS; i++)
            same |= connections[i].fd == fd && connections[i].registered && connections[i].data == data &&
                    (connections[i].events | EPOLLERR | EPOLLHUP) == events;
        wrong += !same;
    }
    for (int i = 0; i < CONNECTIONS; i++)
        expected += connections[i].registered;
    return wrong + abs(found - expected);
}

/* Returns the number of registrations in which the kernel differs from the model. */
static int differences(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll);
    FILE *file = fopen(path, "r");
    int found = differences_in(file);
    fclose(file);
    return found;
}

static void change(int index, int operation, uint32_t events)
{
    /* Some programs give a new value each time, others the descriptor. */
    struct epoll_event event = {.events = events, .data.u64 = next_data++ % 2 ? 1000000 + next_data : connections[index].fd};
    int expects = operation != EPOLL_CTL_ADD;
    int result = epoll_ctl(epoll, operation, connections[index].fd, &event);
    if (expects != connections[index].registered) {
        CHECK(result == -1 && errno == (expects ? ENOENT : EEXIST));
        return;
    }
    CHECK(result == 0);
    connections[index].registered = operation != EPOLL_CTL_DEL;
    if (connections[index].registered) {
        connections[index].events = events;
        connections[index].data = event.data.u64;
    }
}

static int index_of(uint64_t data)
{
    for (int i = 0; i < CONNECTIONS; i++)
        if (connections[i].registered && connections[i].data == data)
            return i;
    return -1;
}

static void wait_for_events(int milliseconds)
{
    struct epoll_event events[CONNECTIONS];
    char bytes[512];
    int count = epoll_wait(epoll, events, CONNECTIONS, milliseconds);
    CHECK(count >= 0);
    for (int i = 0; i < count; i++) {
        int index = index_of(events[i].data.u64);
        CHECK(index >= 0);
        CHECK(events[i].events != 0 && (events[i].events & ~connections[index].events) == 0);
        if (events[i].events & EPOLLIN) {
            ssize_t received = recv(connections[index].fd, bytes, sizeof bytes, 0);
            CHECK(received > 0 && received <= connections[index].unread);
            connections[index].unread -= received;
        }
    }
}

static void send_message(int index)
{
    char bytes[50] = "message";
    if (connections[index].unread > 5000)
        return;
    CHECK(send(connections[index].fd, bytes, sizeof bytes, 0) == sizeof bytes);
    connections[index].unread += sizeof bytes;
}

/* Waits until all messages have come back. A lost change of a registration would lose their events. */
static void receive_all(void)
{
    time_t end = time(NULL) + 20;
    for (int i = 0; i < CONNECTIONS; i++)
        change(i, connections[i].registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, EPOLLIN);
    for (int i = 0; i < CONNECTIONS; i++)
        while (connections[i].unread > 0) {
            CHECK(time(NULL) < end);
            wait_for_events(1000);
        }
}

/* Polls the epoll instance, which makes the kernel look at its registrations. */
static void poll_instance(void)
{
    struct pollfd poll_of = {.fd = epoll, .events = POLLIN};
    CHECK(poll(&poll_of, 1, 0) >= 0);
    CHECK(differences() == 0);
}

enum way { BY_CLOSE, BY_DUP2, BY_FCLOSE, BY_CLOSE_RANGE, WAYS };

/* Closes a connection of which a duplicate stays open. Its registration lives as long as the duplicate. */
static void close_one(int index, enum way way)
{
    int fd = connections[index].fd, duplicate = dup(fd);
    CHECK(duplicate >= 0);
    if (connections[index].registered)
        change(index, EPOLL_CTL_DEL, 0);
    if (way == BY_DUP2) {
        CHECK(dup2(0, fd) == fd);
        CHECK(differences() == 0);
    }
    if (way == BY_FCLOSE)
        CHECK(fclose(fdopen(fd, "r")) == 0);
    else if (way == BY_CLOSE_RANGE)
        CHECK((rand() % 2 ? close_range(fd, fd, 0) : (int)syscall(SYS_close_range, fd, fd, 0)) == 0);
    else
        CHECK(close(fd) == 0);
    connections[index].fd = -1;
    CHECK(differences() == 0);
    CHECK(close(duplicate) == 0);
    open_connection(index);
    /* The new connection may have the number of the old one, but not its registration. */
    change(index, EPOLL_CTL_MOD, EPOLLIN);
}

/* A child of vfork that closes its descriptors leaves the parent's registrations unchanged. */
static void vfork_one(void)
{
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        char *arguments[] = {"true", NULL};
        close_range(3, ~0U, 0);
        execv("/bin/true", arguments);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(differences() == 0);
}

/* A forked child finds the registrations of its parent. */
static void fork_one(void)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(differences() != 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Begins a new epoll instance. It often has the number of the old one, but none of its registrations. */
static void renew_instance(void)
{
    CHECK(close(epoll) == 0);
    epoll = epoll_create1(0);
    CHECK(epoll >= 0);
    for (int i = 0; i < CONNECTIONS; i++)
        connections[i].registered = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        if (i > 0)
            wait_for_events(0);
        change(i, rand() % 2 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, EPOLLIN);
        change(i, EPOLL_CTL_ADD, EPOLLIN);
    }
    CHECK(differences() == 0);
}

/* Removes a registration through another descriptor of the epoll instance. Neither descriptor reports its events then. */
static void remove_through_another(int index)
{
    struct epoll_event event = {0};
    int instance = epoll, duplicate = dup(epoll);
    CHECK(duplicate >= 0);
    wait_for_events(1);
    change(index, connections[index].registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
    CHECK(epoll_ctl(duplicate, EPOLL_CTL_DEL, connections[index].fd, &event) == 0);
    connections[index].registered = 0;
    send_message(index);
    for (int i = 0; i < 4; i++) {
        epoll = i % 2 ? duplicate : instance;
        wait_for_events(1);
    }
    epoll = instance;
    CHECK(close(duplicate) == 0);
    CHECK(differences() == 0);
}

/* Gives the number of the epoll instance to another instance, which has no registrations. */
static void replace_instance(int index)
{
    int other = epoll_create1(0);
    CHECK(other >= 0);
    wait_for_events(1);
    change(index, connections[index].registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
    CHECK(dup2(other, epoll) == epoll && close(other) == 0);
    for (int i = 0; i < CONNECTIONS; i++)
        connections[i].registered = 0;
    send_message(index);
    wait_for_events(1);
    wait_for_events(1);
    CHECK(differences() == 0);
}

enum start { BY_SYSTEM, BY_POPEN, BY_SPAWN, BY_SPAWNP, BY_EXECL, BY_EXECLP, BY_EXECLE, BY_EXECV, BY_EXECVEAT, BY_SYSCALL, STARTS };

/* Starts a program that prints the registrations of its epoll instance. It inherits the instance of this program, and
 * finds the registrations that this program expects. */
static void start_one(int index, enum start start)
{
    char print[64], into_file[128], ninth[160];
    snprintf(print, sizeof print, "/bin/cat /proc/self/fdinfo/%d", epoll);
    snprintf(into_file, sizeof into_file, "%s > seen", print);
    /* The arguments behind the command are the words 0 to 9, of which 4 to 9 are not passed in registers. */
    snprintf(ninth, sizeof ninth, "test \"$# $9 $WORD\" = '9 nine word' && test -n \"$LD_PRELOAD\" && %s", into_file);
    char *arguments[] = {"sh", "-c", ninth, "0", "1", "2", "3", "4", "5", "6", "7", "8", "nine", NULL};
    char *variables[] = {"WORD=word", NULL};
    setenv("WORD", "word", 1);
    wait_for_events(1);
    change(index, connections[index].registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, EPOLLIN);
    change(index, EPOLL_CTL_MOD, EPOLLOUT);
    if (start == BY_POPEN) {
        FILE *pipe = popen(print, "r");
        CHECK(differences_in(pipe) == 0);
        CHECK(pclose(pipe) == 0);
        return;
    }
    int status = 0;
    pid_t child = 0;
    if (start == BY_SYSTEM)
        status = system(into_file);
    else if (start == BY_SPAWN)
        CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, variables) == 0);
    else if (start == BY_SPAWNP)
        CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, variables) == 0);
    else if ((child = vfork()) == 0) {
        if (start == BY_EXECL)
            execl("/bin/sh", "sh", "-c", ninth, "0", "1", "2", "3", "4", "5", "6", "7", "8", "nine", NULL);
        else if (start == BY_EXECLP)
            execlp("sh", "sh", "-c", ninth, "0", "1", "2", "3", "4", "5", "6", "7", "8", "nine", NULL);
        else if (start == BY_EXECLE)
            execle("/bin/sh", "sh", "-c", ninth, "0", "1", "2", "3", "4", "5", "6", "7", "8", "nine", NULL, variables);
        else if (start == BY_EXECV)
            execv("/bin/sh", arguments);
        else if (start == BY_EXECVEAT)
            execveat(AT_FDCWD, "/bin/sh", arguments, variables, 0);
        else
            syscall(SYS_execve, "/bin/sh", arguments, environ);
        _exit(1);
    }
    if (child != 0)
        CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    FILE *file = fopen("seen", "r");
    CHECK(differences_in(file) == 0);
    fclose(file);
    change(index, EPOLL_CTL_MOD, EPOLLIN);
    change(index, EPOLL_CTL_MOD, EPOLLOUT);
    CHECK(differences() == 0);
}

/* Another instance that watches this one finds its events, whatever was changed since. */
static void nest(int index)
{
    struct epoll_event event = {.events = EPOLLIN};
    int outer = epoll_create1(0);
    CHECK(outer >= 0);
    receive_all();
    change(index, EPOLL_CTL_MOD, EPOLLOUT);
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event) == 0);
    CHECK(epoll_wait(outer, &event, 1, 1000) == 1);
    change(index, EPOLL_CTL_MOD, EPOLLIN);
    CHECK(epoll_wait(outer, &event, 1, 0) == 0);
    change(index, EPOLL_CTL_MOD, EPOLLOUT);
    CHECK(epoll_wait(outer, &event, 1, 1000) == 1);
    CHECK(close(outer) == 0);
}

/* Passes the epoll instance through a socket. The received descriptor finds the registrations. */
static void pass(void)
{
    int ends[2], instance = epoll;
    char byte = 0;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &epoll, sizeof epoll);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(sendmsg(ends[0], &message, 0) == 1);
    CHECK(differences() == 0);
    CHECK(recvmsg(ends[1], &message, 0) == 1);
    memcpy(&epoll, CMSG_DATA(&control.header), sizeof epoll);
    change(0, connections[0].registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, EPOLLOUT);
    CHECK(differences() == 0);
    close(ends[0]);
    close(ends[1]);
    close(instance);
}

int main(int count, char **arguments)
{
    CHECK(count == 4);
    server.sin_family = AF_INET;
    server.sin_port = htons(atoi(arguments[2]));
    CHECK(inet_pton(AF_INET, arguments[1], &server.sin_addr) == 1);
    srand(atoi(arguments[3]));
    epoll = epoll_create1(0);
    CHECK(epoll >= 0);
    for (int i = 0; i < CONNECTIONS; i++)
        open_connection(i);
    for (step = 0; step < STEPS; step++) {
        int index = rand() % CONNECTIONS, kind = rand() % 1000;
        uint32_t events[] = {EPOLLIN, EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT};
        if (kind < 500) {
            int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};
            change(index, operations[rand() % 3], events[rand() % 4]);
            CHECK(differences() == 0);
        } else if (kind < 800)
            send_message(index);
        else if (kind < 970)
            wait_for_events(rand() % 2);
        else if (kind < 980)
            receive_all();
        else if (kind < 988)
            poll_instance();
        else if (kind < 991)
            close_one(index, rand() % WAYS);
        else if (kind == 991)
            fork_one();
        else if (kind == 992)
            nest(index);
        else if (kind == 993)
            pass();
        else if (kind == 994)
            vfork_one();
        else if (kind == 995)
            change(index, EPOLL_CTL_MOD, EPOLLIN | EPOLLET), change(index, EPOLL_CTL_MOD, EPOLLIN);
        else if (kind < 998) {
            renew_instance();
            if (rand() % 2 == 0)
                continue;
            receive_all();
            if (kind == 997)
                start_one(index, rand() % STARTS);
            else if (rand() % 2 == 0)
                remove_through_another(index);
            else
                replace_instance(index);
            renew_instance();
        }
        else if (kind == 998 && connections[index].registered)
            CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, connections[index].fd, (void *)16) == -1 && errno == EFAULT);
    }
    for (int start = 0; start < STARTS; start++) {
        renew_instance();
        receive_all();
        start_one(start % CONNECTIONS, start);
    }
    renew_instance();
    receive_all();
    poll_instance();
    puts("all right");
    return 0;
}
