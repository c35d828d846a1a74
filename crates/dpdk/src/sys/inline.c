#define _GNU_SOURCE
#include "inline.h"

#include <linux/if_packet.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Rust: gives the calling thread an lcore id, so that mempools cache for it. */
extern void inlane_dpdk_enrol_thread(void);
/* Rust: one message of DPDK's log. */
extern void inlane_dpdk_log(uint32_t level, const char *text, size_t length);

/* mbufs handled between two calls into a driver: the size that testpmd and most drivers are tuned for is 32. */
#define CHUNK 64
/* mbufs whose first line is on its way into the cache while one is looked at, where the driver has not just written it. */
#define AHEAD 8

static inline void enrol(void)
{
	/* A read of thread-local memory a burst; the call happens once in a thread's life. */
	if (unlikely(rte_lcore_id() == LCORE_ID_ANY))
		inlane_dpdk_enrol_thread();
}

/* Set in the cookie of a packet that was received in one segment: address and length are as its mbuf says until someone
 * changes the packet. Mbufs are aligned to 64 bytes. */
#define WHOLE 1ull

static inline struct rte_mbuf *mbuf_at(uint64_t cookie)
{
	return (struct rte_mbuf *)(uintptr_t)(cookie & ~WHOLE);
}

static inline struct rte_mbuf *mbuf_of(const struct inlane_packet *packet)
{
	return mbuf_at(packet->cookie);
}

static void mark_chain(struct rte_mbuf *mbuf, uint16_t mark)
{
	for (; mbuf != NULL; mbuf = mbuf->next)
		mbuf->port = mark;
}

/* What is received, told as a packet in one segment; returns of how many it really is. */
static inline __attribute__((always_inline)) unsigned int tell(struct rte_mbuf *mbuf, struct inlane_packet *packet,
		uint64_t *sum, const bool marks)
{
	const uint64_t length = mbuf->data_len;

	packet->address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	/* Length and, as zero, port: one store. */
	*(uint64_t *)&packet->length = length;
	packet->cookie = (uint64_t)(uintptr_t)mbuf + WHOLE;
	if (marks)
		mbuf->port = INLANE_MARK_HELD;
	*sum += length;
	return mbuf->nb_segs;
}

/* Tells it of those that are in several segments; returns the bytes behind their first ones. */
static __attribute__((noinline)) uint64_t tell_chains(struct rte_mbuf **mbufs, struct inlane_packet *packets,
		unsigned int count, const bool marks)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (mbufs[i]->nb_segs == 1)
			continue;
		packets[i].cookie = (uint64_t)(uintptr_t)mbufs[i];
		sum += mbufs[i]->pkt_len - mbufs[i]->data_len;
		if (marks)
			mark_chain(mbufs[i], INLANE_MARK_HELD);
	}
	return sum;
}

static inline __attribute__((always_inline)) uint16_t rx_burst(uint16_t port, uint16_t queue,
		struct inlane_packet *packets, uint16_t count, uint64_t *bytes, const bool marks, const bool ahead)
{
	struct rte_mbuf *mbufs[CHUNK + AHEAD];
	uint64_t sum = 0;
	unsigned int segments = 0;

	enrol();
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "length and port are stored as one");
	const size_t got = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(count, CHUNK));
	if (got == 0)
		return 0;
	/* Something to fetch behind the last. */
	for (size_t i = 0; ahead && i < AHEAD; i++)
		mbufs[got + i] = mbufs[0];
#pragma GCC unroll 4
	for (size_t i = 0; i < got; i++) {
		if (ahead)
			rte_prefetch0(mbufs[i + AHEAD]);
		segments |= tell(mbufs[i], &packets[i], &sum, marks);
	}
	if (unlikely(segments != 1))
		sum += tell_chains(mbufs, packets, got, marks);
	*bytes += sum;
	return got;
}

uint16_t inlane_rx_burst(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count, uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, false);
}

uint16_t inlane_rx_burst_ahead(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
			       uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, true);
}

uint16_t inlane_rx_burst_marked(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, true, false);
}

/* Writes what the packet function changed into the mbuf: first byte and length of the first segment. False when that would
 * leave the buffer. */
static inline bool write_back(struct rte_mbuf *mbuf, const struct inlane_packet *packet)
{
	uint64_t offset = packet->address - (uint64_t)(uintptr_t)mbuf->buf_addr;

	if (likely(offset == mbuf->data_off && packet->length == mbuf->data_len))
		return true;
	/* An address in front of the buffer makes the offset huge. */
	if (offset > mbuf->buf_len || packet->length > mbuf->buf_len - offset)
		return false;
	mbuf->data_off = (uint16_t)offset;
	mbuf->pkt_len = mbuf->pkt_len - mbuf->data_len + packet->length;
	mbuf->data_len = (uint16_t)packet->length;
	return true;
}

static inline __attribute__((always_inline)) uint16_t tx_burst(uint16_t port, uint16_t queue,
		const struct inlane_packet *packets, uint16_t count, uint64_t *bytes, uint64_t *errors, const bool marks)
{
	struct rte_mbuf *mbufs[CHUNK];
	size_t done = 0;

	enrol();
	while (done < count) {
		const size_t most = RTE_MIN(count - done, CHUNK);
		const struct inlane_packet *four = &packets[done];
		size_t chunk = 0;
		uint64_t sum = 0;
		bool broken = false;

		/* Four at a time as long as nothing was changed and nothing has further segments, which is the rule. */
		for (; chunk + 4 <= most; chunk += 4, four += 4) {
			uint64_t lengths = 0, differs = 0;
			unsigned int segments = 0;

#pragma GCC unroll 4
			for (size_t k = 0; k < 4; k++) {
				struct rte_mbuf *mbuf = mbuf_of(&four[k]);

				differs |= four[k].address - (uint64_t)(uintptr_t)mbuf->buf_addr - mbuf->data_off;
				differs |= four[k].length ^ mbuf->data_len;
				segments += mbuf->nb_segs;
				lengths += four[k].length;
				mbufs[chunk + k] = mbuf;
			}
			if (unlikely(differs | (segments ^ 4)))
				break;
			sum += lengths;
			if (marks) {
				for (size_t k = 0; k < 4; k++)
					mbufs[chunk + k]->port = INLANE_MARK_SENT | port;
			}
		}
		for (; chunk < most; chunk++) {
			struct rte_mbuf *mbuf = mbuf_of(&packets[done + chunk]);
			if (unlikely(!write_back(mbuf, &packets[done + chunk]))) {
				broken = true;
				break;
			}
			if (marks)
				mbuf->port = INLANE_MARK_SENT | port;
			mbufs[chunk] = mbuf;
			sum += packets[done + chunk].length;
			if (unlikely(mbuf->nb_segs != 1)) {
				sum += mbuf->pkt_len - mbuf->data_len;
				if (marks)
					mark_chain(mbuf, INLANE_MARK_SENT | port);
			}
		}
		uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, chunk);
		for (size_t i = sent; unlikely(i < chunk); i++) {
			sum -= mbufs[i]->pkt_len;
			if (marks)
				mark_chain(mbufs[i], INLANE_MARK_HELD);
		}
		*bytes += sum;
		done += sent;
		if (sent < chunk)
			break;
		if (unlikely(broken)) {
			rte_pktmbuf_free(mbuf_of(&packets[done]));
			*errors += 1;
			done++;
		}
	}
	return done;
}

uint16_t inlane_tx_burst(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
			 uint64_t *bytes, uint64_t *errors)
{
	return tx_burst(port, queue, packets, count, bytes, errors, false);
}

uint16_t inlane_tx_burst_marked(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes, uint64_t *errors)
{
	return tx_burst(port, queue, packets, count, bytes, errors, true);
}

/* For packets that nobody changed: their mbufs are not even looked at. */
uint16_t inlane_tx_burst_as_received(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				     uint64_t *bytes, uint64_t *errors)
{
	struct rte_mbuf *mbufs[CHUNK];
	size_t done = 0;

	enrol();
	while (done < count) {
		const size_t chunk = RTE_MIN(count - done, CHUNK);
		const struct inlane_packet *from = &packets[done];
		uint64_t whole = WHOLE, sum = 0;

		for (size_t i = 0; i < chunk; i++) {
			whole &= from[i].cookie;
			sum += from[i].length;
			mbufs[i] = mbuf_of(&from[i]);
		}
		/* Taken from the pool by a port that is none of DPDK's, or in several segments. */
		if (unlikely(!whole))
			return done + tx_burst(port, queue, from, count - done, bytes, errors, false);
		const size_t sent = rte_eth_tx_burst(port, queue, mbufs, chunk);
		for (size_t i = sent; unlikely(i < chunk); i++)
			sum -= from[i].length;
		*bytes += sum;
		done += sent;
		if (sent < chunk)
			break;
	}
	return done;
}

static unsigned int element_bytes(unsigned int room)
{
	return sizeof(struct rte_mbuf) + INLANE_PRIVATE_BYTES + RTE_PKTMBUF_HEADROOM + room;
}

/* Bytes that `count` mbufs with `room` bytes of data each take, with slack for alignment. */
size_t inlane_pool_bytes(unsigned int count, unsigned int room, size_t page)
{
	struct rte_mempool_objsz size;
	size_t object = rte_mempool_calc_obj_size(element_bytes(room), 0, &size);
	size_t a_page = page / object;

	/* No object lies across the end of a page, whose neighbour may be anywhere. */
	return a_page > 0 ? (count + a_page - 1) / a_page * page : object * count + 4096;
}

/* rte_pktmbuf_pool_create over memory of the caller's, physically contiguous within `page` bytes; 0 where devices use virtual
 * addresses. NULL with rte_errno set on failure.
 *
 * Virtual addresses are said to be contiguous: otherwise DPDK without hugepages begins each object on a page of its own,
 * 4 KiB apart, where all fall into the same sets of the first-level cache. */
struct rte_mempool *inlane_pool_create(const char *name, unsigned int count, unsigned int cache, unsigned int room,
				       int socket, void *memory, size_t length, size_t page)
{
	struct rte_pktmbuf_pool_private private = {
		.mbuf_data_room_size = RTE_PKTMBUF_HEADROOM + room,
		.mbuf_priv_size = INLANE_PRIVATE_BYTES,
	};
	struct rte_mempool *pool =
		rte_mempool_create_empty(name, count, element_bytes(room), cache, sizeof(private), socket,
					 page == 0 ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0);
	int code;

	if (pool == NULL)
		return NULL;
	code = rte_mempool_set_ops_byname(pool, "ring_mp_mc", NULL);
	if (code == 0) {
		rte_pktmbuf_pool_init(pool, &private);
		code = page == 0 ? rte_mempool_populate_iova(pool, memory, (rte_iova_t)(uintptr_t)memory, length, NULL, NULL)
				 : rte_mempool_populate_virt(pool, memory, length, page, NULL, NULL);
	}
	if (code < 0 || pool->populated_size < count) {
		rte_mempool_free(pool);
		rte_errno = code < 0 ? -code : ENOMEM;
		return NULL;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;
}

static inline void describe(struct rte_mbuf *mbuf, struct inlane_packet *packet)
{
	packet->address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	packet->length = 0;
	packet->port = 0;
	packet->cookie = (uint64_t)(uintptr_t)mbuf;
	mbuf->port = INLANE_MARK_HELD;
}

unsigned int inlane_pool_take(struct rte_mempool *pool, struct inlane_packet *packets, unsigned int count)
{
	struct rte_mbuf *mbufs[CHUNK];
	unsigned int done = 0;

	enrol();
	while (done < count) {
		unsigned int chunk = RTE_MIN(count - done, (unsigned int)CHUNK);
		/* All or none: near the pool's end ask for less and less. */
		while (chunk > 0 && rte_pktmbuf_alloc_bulk(pool, mbufs, chunk) != 0)
			chunk /= 2;
		if (chunk == 0)
			break;
		for (unsigned int i = 0; i < chunk; i++)
			describe(mbufs[i], &packets[done + i]);
		done += chunk;
	}
	return done;
}

void inlane_pool_give(const struct inlane_packet *packets, unsigned int count)
{
	struct rte_mbuf *mbufs[CHUNK];

	enrol();
	while (count > 0) {
		unsigned int chunk = RTE_MIN(count, (unsigned int)CHUNK);
		for (unsigned int i = 0; i < chunk; i++)
			mbufs[i] = mbuf_of(&packets[i]);
		rte_pktmbuf_free_bulk(mbufs, chunk);
		packets += chunk;
		count -= chunk;
	}
}

struct inlane_packet_meta *inlane_packet_meta_of(uint64_t cookie)
{
	return rte_mbuf_to_priv(mbuf_at(cookie));
}

/* Describes one segment; returns the next one's cookie, or 0. */
uint64_t inlane_segment(uint64_t cookie, uint64_t *address, uint32_t *length)
{
	struct rte_mbuf *mbuf = mbuf_at(cookie);

	*address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	*length = mbuf->data_len;
	return (uint64_t)(uintptr_t)mbuf->next;
}

/* Adds a segment with these bytes behind a packet whose first mbuf is `cookie` and holds `head_length` bytes. */
int inlane_append_segment(struct rte_mempool *pool, uint64_t cookie, uint32_t head_length, const uint8_t *bytes,
			  uint32_t length)
{
	struct rte_mbuf *head = mbuf_at(cookie);
	struct rte_mbuf *tail = rte_pktmbuf_alloc(pool);

	if (tail == NULL)
		return -ENOMEM;
	head->pkt_len = head->pkt_len - head->data_len + head_length;
	head->data_len = (uint16_t)head_length;
	char *room = length > UINT16_MAX ? NULL : rte_pktmbuf_append(tail, (uint16_t)length);
	if (room == NULL || rte_pktmbuf_chain(head, tail) != 0) {
		rte_pktmbuf_free(tail);
		return -EMSGSIZE;
	}
	memcpy(room, bytes, length);
	tail->port = INLANE_MARK_HELD;
	return 0;
}

/* Frees what waits in a receive queue that nobody drives any more. */
unsigned int inlane_drain(uint16_t port, uint16_t queue)
{
	struct rte_mbuf *mbufs[CHUNK];
	unsigned int freed = 0;
	uint16_t got;

	enrol();
	/* The bound is for devices that make packets from nothing. */
	while (freed < (1u << 17) && (got = rte_eth_rx_burst(port, queue, mbufs, CHUNK)) > 0) {
		rte_pktmbuf_free_bulk(mbufs, got);
		freed += got;
	}
	return freed;
}

/* Hands what a thread that is about to end cached of a pool back to all. */
void inlane_flush_cache(struct rte_mempool *pool, unsigned int lcore)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, lcore);

	if (cache != NULL && cache->len > 0)
		rte_mempool_cache_flush(cache, pool);
}

struct objects {
	void **list;
	unsigned int count;
};

static void collect(struct rte_mempool *pool, void *opaque, void *object, unsigned int index)
{
	struct objects *all = opaque;
	(void)pool;
	(void)index;
	all->list[all->count++] = object;
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
	return (x > y) - (x < y);
}

/* Gives back to `pool` the mbufs that the closed device `port` still held: those sent to it, and if it received into
 * this pool, those it waited to fill. For drivers that do not do so themselves (af_xdp), whose ends go by the marked calls.
 *
 * Exact, because an mbuf says in `port` who has it: HELD is a caller's, SENT|p went to device p, and INVALID, which every
 * allocation writes, was taken by the device that fills from this pool. Callers may hold and free packets meanwhile. */
unsigned int inlane_reclaim(struct rte_mempool *pool, uint16_t port, int receives_into)
{
	unsigned int size = pool->size, reclaimed = 0, free_count = 0;
	struct objects all = { calloc(size, sizeof(void *)), 0 };
	void **free_list = calloc(2 * (size_t)size, sizeof(void *));
	void *object;

	if (all.list == NULL || free_list == NULL)
		goto out;
	while (free_count < size && rte_mempool_generic_get(pool, &object, 1, NULL) == 0)
		free_list[free_count++] = object;
	unsigned int from_pool = free_count;
	for (unsigned int lcore = 0; lcore < RTE_MAX_LCORE && pool->cache_size > 0; lcore++) {
		struct rte_mempool_cache *cache = &pool->local_cache[lcore];
		for (unsigned int i = 0; i < cache->len && free_count < 2 * size; i++)
			free_list[free_count++] = cache->objs[i];
	}
	rte_mempool_generic_put(pool, free_list, from_pool, NULL);
	qsort(free_list, free_count, sizeof(void *), by_address);

	rte_mempool_obj_iter(pool, collect, &all);
	for (unsigned int i = 0; i < all.count; i++) {
		struct rte_mbuf *mbuf = all.list[i];
		int theirs = mbuf->port == (INLANE_MARK_SENT | port) ||
			     (receives_into && mbuf->port == RTE_MBUF_PORT_INVALID);

		if (!theirs || bsearch(&all.list[i], free_list, free_count, sizeof(void *), by_address))
			continue;
		/* Each segment of a chain is an object of its own here. */
		mbuf->next = NULL;
		mbuf->nb_segs = 1;
		rte_mbuf_refcnt_set(mbuf, 1);
		mbuf->port = INLANE_MARK_HELD;
		rte_mempool_generic_put(pool, (void *const *)&all.list[i], 1, NULL);
		reclaimed++;
	}
out:
	free(all.list);
	free(free_list);
	return reclaimed;
}

/* Mb/s of a link that is up, as far as the device says; -1 of one that is down. */
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

/* libbpf's and libxdp's log; their levels are 0 warning, 1 information, 2 debug. Their headers are not needed for more. */
typedef int (*print_function)(int level, const char *format, va_list arguments);
extern print_function libbpf_set_print(print_function function);
extern print_function libxdp_set_print(print_function function);

static int bpf_print(int level, const char *format, va_list arguments)
{
	char text[512];
	int length = level > 1 ? 0 : vsnprintf(text, sizeof(text), format, arguments);

	/* A notice for most: they warn of each thing that they try and then do otherwise. */
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

/* Queues a copy on channel 0 and starts it; negative when the queue is full or the device refuses. */
int inlane_dma_copy(int16_t device, uint64_t source, uint64_t destination, uint32_t length)
{
	return rte_dma_copy(device, 0, source, destination, length, RTE_DMA_OP_FLAG_SUBMIT);
}

/* How many copies ended since last asked; `failed` says that the next one did not end well. */
uint16_t inlane_dma_completed(int16_t device, uint16_t most, int *failed)
{
	bool error = false;
	uint16_t last = 0;
	uint16_t count = rte_dma_completed(device, 0, most, &last, &error);

	*failed = error;
	return count;
}

/* DPDK's driver of packet sockets asks the kernel to put IP fragments together, which then do not fit the port and are cut, and
 * to give what a full socket has no room for to another, which reorders flows. It has no option against either. And it names the
 * group of an interface's sockets by the process's number xor the interface's: two processes that were started one behind the other
 * on both ends of a veth often have the same, which the kernel refuses. It is linked statically, so that its call comes here instead
 * of to the C library. */
int setsockopt(int socket, int level, int name, const void *value, socklen_t length)
{
	uint32_t fanout;

	if (level == SOL_PACKET && name == PACKET_FANOUT && length == sizeof(fanout)) {
		memcpy(&fanout, value, sizeof(fanout));
		fanout &= ~((PACKET_FANOUT_FLAG_DEFRAG | PACKET_FANOUT_FLAG_ROLLOVER) * UINT32_C(0x10000));
		/* Neighbours among processes become far apart: 2^16 by the golden ratio. */
		const uint32_t process = (uint32_t)getpid(), interface = (fanout ^ process) & 0xffff;
		fanout = (fanout & 0xffff0000) | ((process * 40503 + interface) & 0xffff);
		value = &fanout;
	}
	return (int)syscall(SYS_setsockopt, socket, level, name, value, length);
}
