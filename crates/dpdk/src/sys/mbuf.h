/* What the C files share: from a packet to its mbuf, and lcore ids of threads. */
#ifndef INLANE_DPDK_MBUF_H
#define INLANE_DPDK_MBUF_H

#include "inline.h"

#include <stdbool.h>

/* mbufs per call of a driver or mempool. Most drivers are written for bursts of 32. */
#define CHUNK 64

/* Rust: gives the calling thread an lcore id, so that it gets a cache in every mempool. */
extern void inlane_dpdk_register_thread(void);

static inline void register_thread(void)
{
	/* Reads thread-local memory once per burst. A thread is registered at its first burst. */
	if (unlikely(rte_lcore_id() == LCORE_ID_ANY))
		inlane_dpdk_register_thread();
}

/* A flag in a packet's cookie: the packet was allocated from the pool, or has several segments, so its mbuf must be read when it is sent.
 * The mbuf of any other packet has the packet's address and length, unless a packet function changed them. Bit 0 is free, because
 * mbufs are aligned to 64 bytes. It is clear in most packets. Their cookies are the pointers that drivers take. */
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
