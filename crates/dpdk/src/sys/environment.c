/* Threads, errors, log, links, DMA devices, and a correction of the driver of packet sockets. */
#define _GNU_SOURCE
#include "inline.h"

#include <dlfcn.h>
#include <linux/if_packet.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Defined in Rust: takes a message of DPDK's log. */
extern void inlane_dpdk_log(uint32_t level, const char *text, size_t length);

/* Returns the rate in Mb/s that the driver reports for a link, or -1 while the link is down. */
int64_t inlane_link_megabits(const struct rte_eth_link *link)
{
	return link->link_status == RTE_ETH_LINK_UP ? (int64_t)link->link_speed : -1;
}

unsigned int inlane_lcore(void)
{
	return rte_lcore_id();
}

int inlane_errno(void)
{
	return rte_errno;
}

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
	(void)cookie;
	int level = rte_log_cur_msg_loglevel();
	inlane_dpdk_log(level < 0 ? RTE_LOG_INFO : (uint32_t)level, text, length);
	return (ssize_t)length;
}

/* The log functions of libbpf and libxdp. Their levels are 0 warning, 1 information, 2 debug. */
typedef int (*print_function)(int level, const char *format, va_list arguments);
extern print_function libbpf_set_print(print_function function);
extern print_function libxdp_set_print(print_function function);

static int bpf_print(int level, const char *format, va_list arguments)
{
	char text[512];
	int length = level > 1 ? 0 : vsnprintf(text, sizeof(text), format, arguments);

	/* The warnings of libbpf and libxdp become notices, because the libraries also warn of attempts for
	 * which they have an alternative. */
	if (length > 0)
		inlane_dpdk_log(level == 0 ? RTE_LOG_NOTICE : RTE_LOG_INFO, text, RTE_MIN((size_t)length, sizeof(text) - 1));
	return length;
}

int inlane_log_route(void)
{
	libbpf_set_print(bpf_print);
	libxdp_set_print(bpf_print);

	cookie_io_functions_t functions = { .write = log_write };
	FILE *stream = fopencookie(NULL, "w", functions);

	if (stream == NULL)
		return -1;
	setvbuf(stream, NULL, _IOLBF, 1024);
	return rte_openlog_stream(stream);
}

/* Queues a copy on channel 0 and starts it. Returns a negative error if the queue is full or the device refuses. */
int inlane_dma_copy(int16_t device, uint64_t source, uint64_t destination, uint32_t length)
{
	return rte_dma_copy(device, 0, source, destination, length, RTE_DMA_OP_FLAG_SUBMIT);
}

/* Returns how many copies completed since the last call. Sets `failed` to 1 if the next copy after these
 * failed, and otherwise to 0. */
uint16_t inlane_dma_completed(int16_t device, uint16_t most, int *failed)
{
	bool error = false;
	uint16_t last = 0;
	uint16_t count = rte_dma_completed(device, 0, most, &last, &error);

	*failed = error;
	return count;
}

/* Replaces the C library's setsockopt, to change what DPDK's driver of packet sockets asks the kernel for. The
 * driver is linked statically, so its calls reach this function. The driver has no option for either change:
 *
 * - The driver asks the kernel to reassemble IP fragments. Reassembled packets do not fit into a slot and are
 *   cut. The driver also asks the kernel to move packets from a full socket to another one, which reorders
 *   flows. Both flags are removed here.
 * - The driver numbers the group of an interface's sockets: process number xor interface number. Two processes
 *   that were started one after the other on both ends of a veth often get the same group number, which the
 *   kernel refuses. Another number is computed here.
 *
 * The call then goes to the next library that has the function. This is the C library, or a preloaded library that
 * replaces sockets, such as that of 'inlane offload run'. */
int setsockopt(int socket, int level, int name, const void *value, socklen_t length)
{
	typedef int function(int, int, int, const void *, socklen_t);
	static _Atomic(function *) next;
	uint32_t fanout;

	if (level == SOL_PACKET && name == PACKET_FANOUT && length == sizeof(fanout)) {
		memcpy(&fanout, value, sizeof(fanout));
		fanout &= ~((PACKET_FANOUT_FLAG_DEFRAG | PACKET_FANOUT_FLAG_ROLLOVER) * UINT32_C(0x10000));
		/* Spreads neighbouring process numbers far apart: 40503 is 2^16 divided by the golden ratio. */
		const uint32_t process = (uint32_t)getpid(), interface = (fanout ^ process) & 0xffff;
		fanout = (fanout & 0xffff0000) | ((process * 40503 + interface) & 0xffff);
		value = &fanout;
	}
	function *call = atomic_load_explicit(&next, memory_order_relaxed);
	if (call == NULL) {
		call = (function *)dlsym(RTLD_NEXT, "setsockopt");
		if (call == NULL)
			return (int)syscall(SYS_setsockopt, socket, level, name, value, length);
		atomic_store_explicit(&next, call, memory_order_relaxed);
	}
	return call(socket, level, name, value, length);
}
