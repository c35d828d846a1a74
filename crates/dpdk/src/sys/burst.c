/* Bursts: converts between the driver's mbufs and inlane's packets. */
#include "mbuf.h"

/* How many mbufs ahead are prefetched, where the driver has not just written them. */
#define PREFETCH_DISTANCE 8

static void mark_chain(struct rte_mbuf *mbuf, uint16_t mark)
{
	for (; mbuf != NULL; mbuf = mbuf->next)
		mbuf->port = mark;
}

/* Describes a received mbuf as a packet of one segment. Returns its number of segments. */
static inline __attribute__((always_inline)) unsigned int describe(struct rte_mbuf *mbuf, struct inlane_packet *packet,
		uint64_t *sum, const bool marks)
{
	const uint64_t length = mbuf->data_len;

	packet->address = (uint64_t)(uintptr_t)mbuf->buf_addr + mbuf->data_off;
	/* One store writes the length, and 0 as the port. */
	*(uint64_t *)&packet->length = length;
	packet->cookie = (uint64_t)(uintptr_t)mbuf + WHOLE;
	if (marks)
		mbuf->port = INLANE_MARK_HELD;
	*sum += length;
	return mbuf->nb_segs;
}

/* Corrects the description of packets of several segments. Returns the bytes in their further segments. */
static __attribute__((noinline)) uint64_t describe_chains(struct rte_mbuf **mbufs, struct inlane_packet *packets,
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
		struct inlane_packet *packets, uint16_t count, uint64_t *bytes, const bool marks, const bool prefetches)
{
	struct rte_mbuf *mbufs[CHUNK + PREFETCH_DISTANCE];
	uint64_t sum = 0;
	unsigned int segments = 0;

	register_thread();
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "one store writes length and port");
	const size_t got = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(count, CHUNK));
	if (got == 0)
		return 0;
	/* The loop below prefetches beyond the last mbuf. */
	for (size_t i = 0; prefetches && i < PREFETCH_DISTANCE; i++)
		mbufs[got + i] = mbufs[0];
#pragma GCC unroll 4
	for (size_t i = 0; i < got; i++) {
		if (prefetches)
			rte_prefetch0(mbufs[i + PREFETCH_DISTANCE]);
		segments |= describe(mbufs[i], &packets[i], &sum, marks);
	}
	if (unlikely(segments != 1))
		sum += describe_chains(mbufs, packets, got, marks);
	*bytes += sum;
	return got;
}

uint16_t inlane_rx_burst(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count, uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, false);
}

uint16_t inlane_rx_burst_prefetching(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
			       uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, true);
}

uint16_t inlane_rx_burst_marking(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, true, false);
}

/* Writes a packet's address and length, which a packet function may have changed, into its mbuf. Returns false if they lie outside the
 * buffer. */
static inline bool write_back(struct rte_mbuf *mbuf, const struct inlane_packet *packet)
{
	uint64_t offset = packet->address - (uint64_t)(uintptr_t)mbuf->buf_addr;

	if (likely(offset == mbuf->data_off && packet->length == mbuf->data_len))
		return true;
	/* An address before the buffer makes the offset huge. */
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

	register_thread();
	while (done < count) {
		const size_t most = RTE_MIN(count - done, CHUNK);
		const struct inlane_packet *four = &packets[done];
		size_t chunk = 0;
		uint64_t sum = 0;
		bool broken = false;

		/* Checks four packets at once as long as none was changed and all have one segment, as most packets. */
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

uint16_t inlane_tx_burst_marking(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes, uint64_t *errors)
{
	return tx_burst(port, queue, packets, count, bytes, errors, true);
}

/* For packets whose address and length are as received. Their mbufs are not read. */
uint16_t inlane_tx_burst_as_received(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				     uint64_t *bytes, uint64_t *errors)
{
	struct rte_mbuf *mbufs[CHUNK];
	size_t done = 0;

	register_thread();
	while (done < count) {
		const size_t chunk = RTE_MIN(count - done, CHUNK);
		const struct inlane_packet *from = &packets[done];
		uint64_t whole = WHOLE, sum = 0;

		for (size_t i = 0; i < chunk; i++) {
			whole &= from[i].cookie;
			sum += from[i].length;
			mbufs[i] = mbuf_of(&from[i]);
		}
		/* A packet was allocated from the pool instead of received, or has several segments. */
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
