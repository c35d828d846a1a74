/* Shared by the C files: finds the mbuf of a packet, and gives threads lcore ids. */
#ifndef INLANE_DPDK_MBUF_H
#define INLANE_DPDK_MBUF_H

#include "inline.h"

#include <stdbool.h>

/* The number of mbufs in one call of a driver or mempool. Most drivers are written for bursts of 32. */
#define CHUNK 64

/* Defined in Rust: gives the calling thread an lcore id. With an id, the thread has a cache in every mempool. */
extern void inlane_dpdk_register_thread(void);

static inline void register_thread(void)
{
	/* Reads thread-local memory once per burst, and registers the thread at its first burst. */
	if (unlikely(rte_lcore_id() == LCORE_ID_ANY))
		inlane_dpdk_register_thread();
}

/* A flag in bit 0 of a packet's cookie: the packet's mbuf must be read when the packet is sent. It is set if
 * the packet was allocated from the pool or has several segments. The mbuf of any other packet has the
 * packet's address and length, unless a packet function changed them. Bit 0 of a pointer to an mbuf is 0,
 * because mbufs are aligned to 64 bytes. So a cookie with a clear flag is the pointer that drivers take. The
 * flag of most packets is clear. */
#define READ_MBUF 1ull

static inline struct rte_mbuf *mbuf_at(uint64_t cookie)
{
	return (struct rte_mbuf *)(uintptr_t)(cookie & ~READ_MBUF);
}

static inline struct rte_mbuf *mbuf_of(const struct inlane_packet *packet)
{
	return mbuf_at(packet->cookie);
}

#endif
