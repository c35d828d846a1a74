/* Checks that the preloaded library survives what the program does to its processes and descriptors: a child of vfork that
 * changes its root, a forked child that closes its descriptors, a descriptor that gets another file, and an empty
 * environment. The argument selects the check. Prints "all right" after a success. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1); \
        } \
    } while (0)

extern char **environ;

/* The connection's ends. */
static int client, server;

static void connect_both(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(bind(listener, (void *)&address, len) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (void *)&address, &len) == 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (void *)&address, sizeof address) == 0);
    server = accept(listener, NULL, NULL);
    CHECK(server >= 0);
    CHECK(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
}

static void exchange(int count)
{
    char byte = 'x';
    for (int i = 0; i < count; i++) {
        CHECK(write(client, &byte, 1) == 1 && read(server, &byte, 1) == 1);
        CHECK(write(server, &byte, 1) == 1 && read(client, &byte, 1) == 1);
    }
}

/* The length of the memory that the engine shares with this process. */
static size_t shared_length;

/* Returns the start of the memory that the engine shares with this process, or NULL. */
static char *shared_memory(void)
{
    char line[512], *start = NULL, *end = NULL;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "memfd:inlane") != NULL) {
            start = (char *)strtoul(line, &end, 16);
            shared_length = (char *)strtoul(end + 1, NULL, 16) - start;
        }
    fclose(maps);
    return start;
}

/* Exchanges messages until the engine shares memory with this process. */
static void exchange_until_shared(void)
{
    time_t start = time(NULL);
    do {
        CHECK(time(NULL) < start + 30);
        exchange(100);
    } while (shared_memory() == NULL);
}

/* The library of a child of vfork uses the parent's variables. The parent must still get shared memory afterwards. */
static void change_root(void)
{
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        chroot("/");
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    connect_both();
    exchange_until_shared();
}

/* Returns the number of receive rings that the program has asked for. */
static int asked(void)
{
    int count = 0;
    char *area = shared_memory();
    for (int slot = 0; area != NULL && slot < 64; slot++) {
        /* The receive words of crates/offload-protocol/src/slots. Modes 1 and 2 are ASKED and RING. */
        uint64_t state = *(volatile uint64_t *)(area + slot * ((shared_length - 8192 - (64 << 20)) / 64) + slot % 16 * 256 + 64) >> 62;
        count += state == 1 || state == 2;
    }
    return count;
}

/* A forked child that closes its epoll descriptor does not touch the receive rings of its parent. */
static void close_in_child(void)
{
    connect_both();
    exchange_until_shared();
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, server, &event) == 0);
    for (int by_range = 0; by_range < 2; by_range++) {
        time_t start = time(NULL);
        do {
            char byte = 'x';
            CHECK(time(NULL) < start + 30);
            CHECK(write(client, &byte, 1) == 1);
            CHECK(epoll_wait(epoll, &event, 1, 10000) == 1);
            CHECK(recv(server, &byte, 1, MSG_DONTWAIT) == 1);
        } while (asked() == 0);
        int before = asked(), status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (by_range)
                close_range(3, ~0U, 0);
            else
                close(epoll);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(asked() == before);
    }
}

static volatile int trapped;

/* Makes the trapped call fail with ENOTSOCK. */
static void refuse(int signal, siginfo_t *info, void *context)
{
    mcontext_t *state = &((ucontext_t *)context)->uc_mcontext;
    trapped++;
#ifdef __x86_64__
    state->gregs[REG_RAX] = -ENOTSOCK;
#else
    state->regs[0] = -ENOTSOCK;
#endif
}

/* The library tries once to receive from a file that has got the descriptor of a connection, and then finds that the file
 * is no socket. Later reads make no such call. */
static void read_file(void)
{
    char bytes[1];
    connect_both();
    exchange_until_shared();
    close(client);
    int file = open("/proc/self/status", O_RDONLY);
    CHECK(file == client);
    struct sigaction action = {.sa_sigaction = refuse, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    struct sock_filter instructions[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvfrom, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, file, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof instructions / sizeof *instructions, instructions};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0);
    for (int i = 0; i < 500; i++)
        CHECK(read(file, bytes, 1) == 1);
    CHECK(trapped <= 1);
}

/* Programs that are started after clearenv get the library, whichever function starts them. */
static void start_without_environment(void)
{
    char *command = "test -n \"$LD_PRELOAD\"";
    char *arguments[] = {"sh", "-c", command, NULL};
    CHECK(clearenv() == 0 && environ == NULL);
    for (int way = 0; way < 7; way++) {
        pid_t child = 0;
        int status;
        if (way == 6)
            CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
        else if ((child = fork()) == 0) {
            switch (way) {
            case 0: execv("/bin/sh", arguments); break;
            case 1: execvp("/bin/sh", arguments); break;
            case 2: execl("/bin/sh", "sh", "-c", command, NULL); break;
            case 3: execlp("/bin/sh", "sh", "-c", command, NULL); break;
            case 4: execve("/bin/sh", arguments, NULL); break;
            case 5: execle("/bin/sh", "sh", "-c", command, NULL, NULL); break;
            }
            _exit(127);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0) {
            fprintf(stderr, "way %d: status %d\n", way, status);
            exit(1);
        }
    }
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    if (strcmp(arguments[1], "root") == 0)
        change_root();
    else if (strcmp(arguments[1], "child") == 0)
        close_in_child();
    else if (strcmp(arguments[1], "file") == 0)
        read_file();
    else if (strcmp(arguments[1], "environment") == 0)
        start_without_environment();
    else
        CHECK(0);
    puts("all right");
    return 0;
}
