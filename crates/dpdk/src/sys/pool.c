/* Pools of mbufs. */
#include "mbuf.h"

#include <linux/bpf.h>
#include <stdlib.h>
#include <string.h>

static unsigned int element_bytes(unsigned int room)
{
	return sizeof(struct rte_mbuf) + INLANE_PRIVATE_BYTES + RTE_PKTMBUF_HEADROOM + room;
}

/* Returns the bytes of memory that a pool of `count` mbufs with `room` bytes of data room needs, including
 * room for alignment. If `page` is not 0, no mbuf crosses a page of that many bytes, unless it is longer than
 * a page. */
size_t inlane_pool_bytes(unsigned int count, unsigned int room, size_t page)
{
	struct rte_mempool_objsz size;
	size_t object = rte_mempool_calc_obj_size(element_bytes(room), 0, &size);
	size_t a_page = page / object;

	/* No object crosses the end of a page, because the next page may lie elsewhere in physical memory. So
	 * each page holds whole objects only. */
	return a_page > 0 ? (count + a_page - 1) / a_page * page : object * count + 4096;
}

/* Creates a pool of mbufs in memory that the caller owns. The memory is physically contiguous within each
 * `page` bytes. `page` is 0 if devices use virtual addresses; the memory is then declared contiguous. Returns
 * NULL on failure, with rte_errno set. Without the declaration, DPDK without hugepages would begin each
 * object on a page of its own. Objects that are 4 KiB apart compete for the same sets of the first-level
 * cache. */
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

static inline void describe_allocated(struct rte_mbuf *mbuf, struct inlane_packet *packet)
{
	packet->address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	packet->length = 0;
	packet->port = 0;
	packet->cookie = (uint64_t)(uintptr_t)mbuf + READ_MBUF;
	mbuf->port = INLANE_MARK_HELD;
}

unsigned int inlane_pool_allocate(struct rte_mempool *pool, struct inlane_packet *packets, unsigned int count)
{
	struct rte_mbuf *mbufs[CHUNK];
	unsigned int done = 0;

	register_thread();
	while (done < count) {
		unsigned int chunk = RTE_MIN(count - done, (unsigned int)CHUNK);
		/* DPDK allocates all mbufs of a chunk or none. So if a pool is nearly empty, this loop asks
		 * for smaller and smaller chunks. */
		while (chunk > 0 && rte_pktmbuf_alloc_bulk(pool, mbufs, chunk) != 0)
			chunk /= 2;
		if (chunk == 0)
			break;
		for (unsigned int i = 0; i < chunk; i++)
			describe_allocated(mbufs[i], &packets[done + i]);
		done += chunk;
	}
	return done;
}

void inlane_pool_free(const struct inlane_packet *packets, unsigned int count)
{
	struct rte_mbuf *mbufs[CHUNK];

	register_thread();
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

/* Writes the address and length of the segment `cookie` to `address` and `length`. Returns the cookie of the
 * next segment, or 0 if there is none. */
uint64_t inlane_segment(uint64_t cookie, uint64_t *address, uint32_t *length)
{
	struct rte_mbuf *mbuf = mbuf_at(cookie);

	*address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	*length = mbuf->data_len;
	return (uint64_t)(uintptr_t)mbuf->next;
}

/* Appends a segment with a copy of `bytes` to the packet whose first mbuf is `cookie` and contains `head_length` bytes. */
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

/* Frees the packets that are waiting in a receive queue. Returns the number of freed packets. */
unsigned int inlane_free_received(uint16_t port, uint16_t queue)
{
	struct rte_mbuf *mbufs[CHUNK];
	unsigned int freed = 0;
	uint16_t got;

	register_thread();
	/* The loop is bounded, because some devices generate packets without end. */
	while (freed < (1u << 17) && (got = rte_eth_rx_burst(port, queue, mbufs, CHUNK)) > 0) {
		rte_pktmbuf_free_bulk(mbufs, got);
		freed += got;
	}
	return freed;
}

/* Returns the buffers in the cache of thread `lcore` to the pool. */
void inlane_flush_cache(struct rte_mempool *pool, unsigned int lcore)
{
	struct rte_mempool_cache *cache = rte_mempool_default_cache(pool, lcore);

	if (cache != NULL && cache->len > 0)
		rte_mempool_cache_flush(cache, pool);
}

/* Returns the size of an object, padding included, in a pool like `pool` whose mbufs have `room` bytes of
 * data room. The AF_XDP driver gives the kernel whole objects as chunks (xdp_umem_configure in
 * rte_eth_af_xdp.c). This function computes the size as the driver does. */
unsigned int inlane_pool_xdp_chunk(struct rte_mempool *pool, unsigned int room)
{
	return rte_mempool_calc_obj_size(element_bytes(room), pool->flags, NULL);
}

/* Returns how many bytes of a chunk lie before a received frame: DPDK's header, the mbuf, its private area
 * and headroom, and the kernel's headroom for XDP programs. */
unsigned int inlane_pool_xdp_headroom(struct rte_mempool *pool)
{
	return pool->header_size + sizeof(struct rte_mbuf) + rte_pktmbuf_priv_size(pool) + RTE_PKTMBUF_HEADROOM +
	       XDP_PACKET_HEADROOM;
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

/* Frees the mbufs of `pool` that the closed device `port` still held: mbufs that were sent to the device, and
 * mbufs that the device had allocated to receive into. `receives_into` says whether the device received into
 * this pool. Returns the number of freed mbufs. Needed for a driver that loses mbufs (af_xdp); the queues of
 * such a driver use the marking functions. No other thread may use a mempool during the call, because the call
 * reads the caches of all threads.
 *
 * The field `port` of an mbuf says who holds the mbuf. HELD: the caller of a queue or pool. SENT|p: device p.
 * INVALID: the device that allocated the mbuf to receive into; every allocation writes this value. A free mbuf
 * may have any of these values, so the free mbufs are listed first and skipped. */
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
		int lost = mbuf->port == (INLANE_MARK_SENT | port) ||
			     (receives_into && mbuf->port == RTE_MBUF_PORT_INVALID);

		if (!lost || bsearch(&all.list[i], free_list, free_count, sizeof(void *), by_address))
			continue;
		/* Each segment of a chain is freed by itself, so the links of the chain are removed here. */
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
