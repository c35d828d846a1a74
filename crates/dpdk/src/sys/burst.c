/* Bursts: converts between the driver's mbufs and inlane's packets. */
#include "mbuf.h"

/* Two 64-bit words. One vector instruction loads, adds or stores both. */
typedef uint64_t word_pair __attribute__((vector_size(16), aligned(8)));

static void mark_chain(struct rte_mbuf *mbuf, uint16_t mark)
{
	for (; mbuf != NULL; mbuf = mbuf->next)
		mbuf->port = mark;
}

/* Returns the rearm word of an mbuf: the 64 bits that hold its fields data_off, refcnt, nb_segs and port. */
static inline uint64_t rearm_word(const struct rte_mbuf *mbuf)
{
	return *(const uint64_t *)&mbuf->rearm_data;
}

/* Returns the field data_off of a rearm word. */
static inline uint16_t offset_of(uint64_t rearm)
{
	_Static_assert(offsetof(struct rte_mbuf, data_off) == offsetof(struct rte_mbuf, rearm_data), "bits 0 to 15");
	return (uint16_t)rearm;
}

/* Returns the field nb_segs of a rearm word. */
static inline uint16_t segments_of(uint64_t rearm)
{
	_Static_assert(offsetof(struct rte_mbuf, nb_segs) - offsetof(struct rte_mbuf, rearm_data) == 4, "bits 32 to 47");
	return (uint16_t)(rearm >> 32);
}

/* Describes a received mbuf as a packet of one segment. `offset` is the mbuf's data_off. */
static inline __attribute__((always_inline)) void describe(struct rte_mbuf *mbuf, uint16_t offset,
		struct inlane_packet *packet, uint64_t *sum, const bool marks)
{
	const uint64_t length = mbuf->data_len;

	packet->address = (uint64_t)(uintptr_t)mbuf->buf_addr + offset;
	/* One 64-bit store writes the length to `length`, and 0 to the port next to it. */
	*(uint64_t *)&packet->length = length;
	packet->cookie = (uint64_t)(uintptr_t)mbuf;
	if (marks)
		mbuf->port = INLANE_MARK_HELD;
	*sum += length;
}

/* Corrects the description of packets of several segments. Returns the number of bytes in all segments but
 * the first. */
static __attribute__((noinline)) uint64_t describe_chains(struct rte_mbuf **mbufs, struct inlane_packet *packets,
		unsigned int count, const bool marks)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (mbufs[i]->nb_segs == 1)
			continue;
		packets[i].cookie = (uint64_t)(uintptr_t)mbufs[i] + READ_MBUF;
		sum += mbufs[i]->pkt_len - mbufs[i]->data_len;
		if (marks)
			mark_chain(mbufs[i], INLANE_MARK_HELD);
	}
	return sum;
}

static inline __attribute__((always_inline)) uint16_t rx_burst(uint16_t port, uint16_t queue,
		struct inlane_packet *packets, uint16_t count, uint64_t *bytes, const bool marks, const bool settled)
{
	struct rte_mbuf *mbufs[CHUNK];
	uint64_t sum = 0, rearm = 0;
	unsigned int segments = 0;

	register_thread();
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "one store writes length and port");
	/* The type size_t keeps GCC from computing the minimum in a vector register, which would delay the call. */
	const size_t most = RTE_MIN((size_t)count, CHUNK);
	const size_t got = rte_eth_rx_burst(port, queue, mbufs, most);
	if (got == 0)
		return 0;
	/* No prefetch here: the CPU executes iterations far enough ahead. */
#pragma GCC unroll 4
	for (size_t i = 0; i < got; i++) {
		struct rte_mbuf *mbuf = mbufs[i];

		/* One load of the whole word replaces two loads. That is faster, because loads and stores limit this
		 * loop's rate. But if the driver has just written the word's fields one by one, the load stalls on
		 * store forwarding. */
		if (settled) {
			const uint64_t word = rearm_word(mbuf);

			describe(mbuf, offset_of(word), &packets[i], &sum, marks);
			rearm |= word;
		} else {
			describe(mbuf, mbuf->data_off, &packets[i], &sum, marks);
			segments |= mbuf->nb_segs;
		}
	}
	if (settled)
		segments = segments_of(rearm);
	if (unlikely(segments != 1))
		sum += describe_chains(mbufs, packets, got, marks);
	*bytes += sum;
	return got;
}

uint16_t inlane_rx_burst(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count, uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, false);
}

uint16_t inlane_rx_burst_settled(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, false, true);
}

uint16_t inlane_rx_burst_marking(uint16_t port, uint16_t queue, struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes)
{
	return rx_burst(port, queue, packets, count, bytes, true, false);
}

/* Writes a packet's address and length into its mbuf, because a packet function may have changed them.
 * Returns false if the packet lies outside the mbuf's buffer. */
static inline bool write_back(struct rte_mbuf *mbuf, const struct inlane_packet *packet)
{
	uint64_t offset = packet->address - (uint64_t)(uintptr_t)mbuf->buf_addr;

	if (likely(offset == mbuf->data_off && packet->length == mbuf->data_len))
		return true;
	/* An address before the buffer makes the offset wrap to a huge number, so this line also refuses such
	 * addresses. */
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

		/* Checks four packets at once as long as no packet was changed and each has one segment. Most
		 * packets are like that. */
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

/* Not inlined into the function for unchanged packets, whose stack frame would become three times as large. */
__attribute__((noinline)) uint16_t inlane_tx_burst(uint16_t port, uint16_t queue, const struct inlane_packet *packets,
						   uint16_t count, uint64_t *bytes, uint64_t *errors)
{
	return tx_burst(port, queue, packets, count, bytes, errors, false);
}

uint16_t inlane_tx_burst_marking(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				uint64_t *bytes, uint64_t *errors)
{
	return tx_burst(port, queue, packets, count, bytes, errors, true);
}

/* Loads the second 16 bytes of a packet: word 0 holds the length and the port, word 1 the cookie. */
static inline word_pair length_and_cookie(const struct inlane_packet *packet)
{
	_Static_assert(offsetof(struct inlane_packet, cookie) == offsetof(struct inlane_packet, length) + 8, "adjacent");
	return *(const word_pair *)&packet->length;
}

/* Sends at most CHUNK packets whose address and length are as received. */
static inline __attribute__((always_inline)) uint16_t tx_chunk_as_received(uint16_t port, uint16_t queue,
		const struct inlane_packet *packets, uint16_t count, uint64_t *bytes, uint64_t *errors)
{
	struct rte_mbuf *mbufs[CHUNK];
	/* The sums of length_and_cookie over the packets with even and with odd index. */
	word_pair even = { 0, 0 }, odd = { 0, 0 };
	size_t i = 0;

#pragma GCC unroll 4
	for (; i + 2 <= count; i += 2) {
		const word_pair first = length_and_cookie(&packets[i]), second = length_and_cookie(&packets[i + 1]);

		even += first;
		odd += second;
		*(word_pair *)&mbufs[i] = __builtin_shuffle(first, second, (word_pair){ 1, 3 });
	}
	if (i < count) {
		even += length_and_cookie(&packets[i]);
		mbufs[i] = (struct rte_mbuf *)(uintptr_t)packets[i].cookie;
	}
	/* A cookie is a pointer to an mbuf only if its flag READ_MBUF is clear. The pointers are multiples of 64,
	 * so the lower 6 bits of the two sums of cookies count the flags. If any flag is set, the slower function
	 * sends the packets. */
	_Static_assert(CHUNK / 2 < 64, "6 bits count the flags");
	if (unlikely((even[1] | odd[1]) & 63))
		return inlane_tx_burst(port, queue, packets, count, bytes, errors);
	/* Word 0 of each sum has ports in its upper half, which the cast drops, and bytes in its lower half.
	 * The bytes do not overflow: the lengths in a chunk of received packets add up to less than 2^32. */
	uint64_t sum = (uint32_t)(even[0] + odd[0]);
	const uint16_t sent = rte_eth_tx_burst(port, queue, mbufs, count);
	for (size_t i = sent; unlikely(i < count); i++)
		sum -= packets[i].length;
	*bytes += sum;
	return sent;
}

/* Sends more than CHUNK packets whose address and length are as received. */
static __attribute__((noinline)) uint16_t tx_chunks_as_received(uint16_t port, uint16_t queue,
		const struct inlane_packet *packets, uint16_t count, uint64_t *bytes, uint64_t *errors)
{
	uint16_t done = 0, chunk, sent;

	do {
		chunk = RTE_MIN(count - done, CHUNK);
		sent = tx_chunk_as_received(port, queue, &packets[done], chunk, bytes, errors);
		done += sent;
	} while (sent == chunk && done < count);
	return done;
}

/* Sends packets whose address and length are as received. Does not read the mbufs of such packets. */
uint16_t inlane_tx_burst_as_received(uint16_t port, uint16_t queue, const struct inlane_packet *packets, uint16_t count,
				     uint64_t *bytes, uint64_t *errors)
{
	register_thread();
	/* One chunk needs no loop, so the compiler keeps the arguments in registers. */
	if (likely(count <= CHUNK))
		return tx_chunk_as_received(port, queue, packets, count, bytes, errors);
	return tx_chunks_as_received(port, queue, packets, count, bytes, errors);
}
