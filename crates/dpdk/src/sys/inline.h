/* What Rust uses of DPDK: the public headers, of which bindgen takes the names listed in build.rs, and
 * functions of the C files here. Rust cannot call DPDK's inline functions, so the C files call them. Rust
 * makes one call per burst, never one per packet. */
#ifndef INLANE_DPDK_INLINE_H
#define INLANE_DPDK_INLINE_H

#include <rte_config.h>
#include <rte_dev.h>
#include <rte_dmadev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_version.h>

#include "xdp.h"

/* Has the layout of inlane_core::Packet. */
struct inlane_packet {
	uint64_t address;
	uint32_t length;
	uint32_t port;
	uint64_t cookie;
};

/* Has the layout of inlane_core::packet::PacketMeta. It lies in the mbuf's private area. */
struct inlane_packet_meta {
	uint64_t time_ns;
	uint32_t wire_length;
	uint32_t interface;
};

/* The size of an mbuf's private area in bytes. It is a cache line, so that packet data is aligned to cache
 * lines. */
#define INLANE_PRIVATE_BYTES 64

/* Marks in the field `port` of an mbuf, which say who holds the mbuf. See inlane_reclaim. */
#define INLANE_MARK_HELD 0x7fff
#define INLANE_MARK_SENT 0x8000

/* Macros that bindgen cannot evaluate. */
static const uint64_t INLANE_RSS_FLOWS = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
static const uint64_t INLANE_RX_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t INLANE_TX_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;

uint16_t inlane_rx_burst(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count, uint64_t *bytes);
/* Does the same for net_ring, a driver that passes mbufs on without writing them. */
uint16_t inlane_rx_burst_settled(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes);
uint16_t inlane_tx_burst(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
			 uint64_t *bytes, uint64_t *errors);
uint16_t inlane_tx_burst_as_received(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				     uint64_t *bytes, uint64_t *errors);
/* The next two functions also mark in each mbuf who holds it. They are for devices that lose buffers:
 * inlane_reclaim finds the lost buffers by these marks. */
uint16_t inlane_rx_burst_marking(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes);
uint16_t inlane_tx_burst_marking(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes, uint64_t *errors);
size_t inlane_pool_bytes(unsigned int count, unsigned int room, size_t page);
struct rte_mempool *inlane_pool_create(const char *name, unsigned int count, unsigned int cache, unsigned int room,
				       int socket, void *memory, size_t length, size_t page);
unsigned int inlane_pool_allocate(struct rte_mempool *pool, struct inlane_packet *packets, unsigned int count);
void inlane_pool_free(const struct inlane_packet *packets, unsigned int count);
struct inlane_packet_meta *inlane_packet_meta_of(uint64_t cookie);
uint64_t inlane_segment(uint64_t cookie, uint64_t *address, uint32_t *length);
int inlane_append_segment(struct rte_mempool *pool, uint64_t cookie, uint32_t head_length, const uint8_t *bytes,
			  uint32_t length);
unsigned int inlane_free_received(uint16_t port, uint16_t queue);
unsigned int inlane_pool_xdp_chunk(struct rte_mempool *pool, unsigned int room);
unsigned int inlane_pool_xdp_headroom(struct rte_mempool *pool);
void inlane_flush_cache(struct rte_mempool *pool, unsigned int lcore);
unsigned int inlane_reclaim(struct rte_mempool *pool, uint16_t port, int receives_into);
int64_t inlane_link_megabits(const struct rte_eth_link *link);
unsigned int inlane_lcore(void);
int inlane_errno(void);
int inlane_log_route(void);
int inlane_dma_copy(int16_t device, uint64_t source, uint64_t destination, uint32_t length);
uint16_t inlane_dma_completed(int16_t device, uint16_t most, int *failed);

#endif
