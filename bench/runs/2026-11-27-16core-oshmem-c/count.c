/* LD_PRELOAD library: counts socket calls and waits of a process. count_calls(label) prints one JSON line to the file
 * $COUNT_OUT.PID and starts again from zero; the end of the process prints the rest. Sockets also give TCP_INFO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <linux/tcp.h>
#include <netinet/in.h>

enum { SEND, RECV, SENDMSG, RECVMSG, WRITEV, EPOLL_WAIT, EPOLL_SLEEP, EPOLL_CTL, POLL, YIELD, NANOSLEEP, FUTEXLIKE, KINDS };
static const char *names[] = {"send", "recv", "sendmsg", "recvmsg", "writev", "epoll_wait_0", "epoll_wait_timeout", "epoll_ctl", "poll", "sched_yield", "nanosleep", "other"};
static struct { _Atomic unsigned long calls, bytes, again; } counts[KINDS];
#define FDS 4096
static _Atomic unsigned long fd_sends[FDS], fd_recvs[FDS], fd_sent[FDS];
static struct tcp_info last[FDS];

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
static void note(int kind, long result) {
    counts[kind].calls++;
    if (result > 0) counts[kind].bytes += result;
    else if (result < 0) counts[kind].again++;
}
static int info(int fd, struct tcp_info *i) {
    socklen_t l = sizeof *i;
    memset(i, 0, sizeof *i);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, i, &l) == 0;
}
static FILE *out(void) {
    static FILE *file;
    const char *base = getenv("COUNT_OUT");
    char path[500];
    if (!file && base) snprintf(path, sizeof path, "%s.%d", base, (int)getpid()), file = fopen(path, "a");
    return file;
}
static void socket_line(int fd, const char *label) {
    struct tcp_info now, *was = &last[fd];
    FILE *f = out();
    if (!f || fd_sends[fd] < 200 || !info(fd, &now)) return;
    int rcv = 0, snd = 0; socklen_t l = sizeof rcv;
    getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcv, &l), l = sizeof snd, getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &snd, &l);
    fprintf(f, "{\"label\":\"%s\",\"pid\":%d,\"fd\":%d,\"sends\":%lu,\"sent_bytes\":%lu,\"recvs\":%lu,\"data_segs_out\":%u,\"segs_out\":%u,\"data_segs_in\":%u,\"segs_in\":%u,"
        "\"busy_us\":%llu,\"rwnd_limited_us\":%llu,\"sndbuf_limited_us\":%llu,\"snd_cwnd\":%u,\"snd_mss\":%u,\"rtt_us\":%u,\"retrans\":%u,\"rcvbuf\":%d,\"sndbuf\":%d,\"rcv_space\":%u,\"snd_wnd\":%u}\n",
        label, (int)getpid(), fd, fd_sends[fd], fd_sent[fd], fd_recvs[fd], now.tcpi_data_segs_out - was->tcpi_data_segs_out, now.tcpi_segs_out - was->tcpi_segs_out,
        now.tcpi_data_segs_in - was->tcpi_data_segs_in, now.tcpi_segs_in - was->tcpi_segs_in, now.tcpi_busy_time - was->tcpi_busy_time,
        now.tcpi_rwnd_limited - was->tcpi_rwnd_limited, now.tcpi_sndbuf_limited - was->tcpi_sndbuf_limited, now.tcpi_snd_cwnd, now.tcpi_snd_mss, now.tcpi_rtt,
        now.tcpi_total_retrans, rcv, snd, now.tcpi_rcv_space,
#ifdef HAVE_SND_WND
        now.tcpi_snd_wnd
#else
        0u
#endif
    );
    *was = now;
    fd_sends[fd] = fd_recvs[fd] = fd_sent[fd] = 0;
    fflush(f);
}
void count_calls(const char *label) {
    FILE *f = out();
    if (!f) return;
    fprintf(f, "{\"label\":\"%s\",\"pid\":%d,\"cpu\":%d", label, (int)getpid(), sched_getcpu());
    for (int k = 0; k < KINDS; k++)
        if (counts[k].calls) {
            fprintf(f, ",\"%s\":[%lu,%lu,%lu]", names[k], counts[k].calls, counts[k].bytes, counts[k].again);
            counts[k].calls = counts[k].bytes = counts[k].again = 0;
        }
    fprintf(f, "}\n");
    fflush(f);
    for (int fd = 0; fd < FDS; fd++) if (fd_sends[fd]) socket_line(fd, label);
}
/* Starts from zero without a line */
void count_reset(void) {
    for (int k = 0; k < KINDS; k++) counts[k].calls = counts[k].bytes = counts[k].again = 0;
    for (int fd = 0; fd < FDS; fd++) if (fd_sends[fd]) { struct tcp_info i; if (info(fd, &i)) last[fd] = i; fd_sends[fd] = fd_recvs[fd] = fd_sent[fd] = 0; }
}
__attribute__((destructor)) static void at_end(void) { if (getenv("COUNT_AT_END")) count_calls("end"); }

ssize_t send(int fd, const void *b, size_t n, int flags) { REAL(send); ssize_t r = real(fd, b, n, flags); int e = errno; note(SEND, r); if (fd >= 0 && fd < FDS && r > 0) fd_sends[fd]++, fd_sent[fd] += r; errno = e; return r; }
ssize_t recv(int fd, void *b, size_t n, int flags) { REAL(recv); ssize_t r = real(fd, b, n, flags); int e = errno; note(RECV, r); if (fd >= 0 && fd < FDS && r > 0) fd_recvs[fd]++; errno = e; return r; }
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { REAL(sendmsg); ssize_t r = real(fd, m, flags); int e = errno; note(SENDMSG, r); if (fd >= 0 && fd < FDS && r > 0) fd_sends[fd]++, fd_sent[fd] += r; errno = e; return r; }
ssize_t recvmsg(int fd, struct msghdr *m, int flags) { REAL(recvmsg); ssize_t r = real(fd, m, flags); int e = errno; note(RECVMSG, r); errno = e; return r; }
ssize_t writev(int fd, const struct iovec *v, int n) { REAL(writev); ssize_t r = real(fd, v, n); int e = errno; note(WRITEV, r); errno = e; return r; }
int epoll_wait(int fd, struct epoll_event *v, int n, int t) { REAL(epoll_wait); int r = real(fd, v, n, t); int e = errno; note(t ? EPOLL_SLEEP : EPOLL_WAIT, r); errno = e; return r; }
int epoll_ctl(int fd, int op, int f, struct epoll_event *v) { REAL(epoll_ctl); int r = real(fd, op, f, v); int e = errno; note(EPOLL_CTL, r); errno = e; return r; }
int poll(struct pollfd *p, nfds_t n, int t) { REAL(poll); int r = real(p, n, t); int e = errno; note(POLL, r); errno = e; return r; }
int sched_yield(void) { REAL(sched_yield); note(YIELD, 0); return real(); }
int nanosleep(const struct timespec *a, struct timespec *b) { REAL(nanosleep); note(NANOSLEEP, 0); return real(a, b); }
int clock_nanosleep(clockid_t c, int f, const struct timespec *a, struct timespec *b) { REAL(clock_nanosleep); note(NANOSLEEP, 0); return real(c, f, a, b); }
int close(int fd) { REAL(close); if (getenv("COUNT_AT_END") && fd >= 0 && fd < FDS && fd_sends[fd] >= 200) socket_line(fd, "close"); return real(fd); }
