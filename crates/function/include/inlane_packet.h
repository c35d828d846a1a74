// Packets and bursts, as a packet function sees them. Start with inlane.h.
#ifndef INLANE_PACKET_H
#define INLANE_PACKET_H

#include "inlane_block.h"

namespace inlane {

namespace detail {
// Loads 16 bytes at offset `at`; bytes beyond the packet's end are 0. Called rarely, so not inlined.
INLANE_RARE bytes16 get_some(const uint8_t *data, uint32_t length, uint32_t at) {
    bytes16 value = {0, 0};
    for (uint32_t i = 0; i < 16 && at < length && i < length - at; i++)
        (i < 8 ? value.low : value.high) |= static_cast<uint64_t>(data[at + i]) << i % 8 * 8;
    return value;
}
INLANE_RARE void put_some(uint8_t *data, uint32_t length, uint32_t at, bytes16 value) {
    for (uint32_t i = 0; i < 16 && at < length && i < length - at; i++)
        data[at + i] = static_cast<uint8_t>((i < 8 ? value.low : value.high) >> i % 8 * 8);
}
} // namespace detail

// Bounded reads, for any class with `length()` and `data()`. `at` is the offset in bytes. Reading beyond the
// end returns 0.
//
//   has(at, bytes)     true if all of these bytes are inside
//   u8(at)             one byte
//   be16(at), be32(at) two or four bytes in network order, as a number
//   load16(at)         sixteen bytes; those beyond the end are 0
template <class Bytes> class reader {
    INLANE const Bytes &self() const { return *static_cast<const Bytes *>(this); }

  public:
    INLANE bool has(uint32_t at, uint32_t bytes) const {
        return bytes <= self().length() && at <= self().length() - bytes;
    }
    INLANE uint8_t u8(uint32_t at) const { return has(at, 1) ? self().data()[at] : 0; }
    INLANE uint16_t be16(uint32_t at) const {
        return has(at, 2) ? swap_bytes(detail::get<uint16_t>(self().data() + at)) : 0;
    }
    INLANE uint32_t be32(uint32_t at) const {
        return has(at, 4) ? swap_bytes(detail::get<uint32_t>(self().data() + at)) : 0;
    }
    INLANE bytes16 load16(uint32_t at) const {
        bytes16 value = {0, 0};
        if (INLANE_LIKELY(has(at, 16))) {
            const uint8_t *from = self().data() + at;
#if INLANE_GPU
            if (reinterpret_cast<uintptr_t>(from) % 16 == 0) return *reinterpret_cast<const bytes16 *>(from);
#endif
            value.low = detail::get<uint64_t>(from);
            value.high = detail::get<uint64_t>(from + 8);
            return value;
        }
        return detail::get_some(self().data(), self().length(), at);
    }
};

namespace detail {
// Moves `bytes` bytes inside one buffer; the two places may overlap. On a GPU, one thread has up to 64 bytes in flight.
INLANE void move(uint8_t *to, const uint8_t *from, uint32_t bytes) {
#if INLANE_GPU
    constexpr uint32_t most = 64;
    uint8_t held[most];
    for (uint32_t done = 0; done < bytes; done += most) {
        uint32_t some = bytes - done < most ? bytes - done : most;
        uint32_t at = to > from ? bytes - done - some : done; // begin at the end whose bytes would be overwritten
#pragma unroll
        for (uint32_t i = 0; i < most; i++)
            if (i < some) held[i] = from[at + i];
#pragma unroll
        for (uint32_t i = 0; i < most; i++)
            if (i < some) to[at + i] = held[i];
    }
#else
    __builtin_memmove(to, from, bytes);
#endif
}
} // namespace detail

template <uint32_t N> class front_bytes;

// One packet. On a GPU, the bytes of the packet may be in host memory. Each access may then cross PCIe, so
// read many bytes at once and write few.
//
//   length(), data()             the length in bytes, and the first byte
//   resize(length)               changes the length; bytes are added or removed at the end
//   insert(at, bytes)            makes room for `bytes` bytes at offset `at`: pushes a tag or an outer header
//   remove(at, bytes)            removes `bytes` bytes at offset `at`: pulls a tag or an outer header
//   set_u8, set_be16, set_be32   write a number in network order; write nothing if it does not fit
//   store16(at, bytes)           writes sixteen bytes, except those beyond the end
//   front<N>()                   a copy of the first N bytes, to read headers from
class packet : public reader<packet> {
    uint8_t *data_;
    uint32_t length_;
    uint32_t room_;

  public:
    INLANE packet(uint8_t *data, uint32_t length, uint32_t room) : data_(data), length_(length), room_(room) {}

    INLANE uint32_t length() const { return length_; }
    INLANE uint8_t *data() const { return data_; }

    // Changes the packet's length. Returns false and changes nothing if `length` is 0 or exceeds the buffer's
    // room. The contents of added bytes are undefined.
    INLANE bool resize(uint32_t length) {
        if (length == 0 || (length > length_ && length > room_)) return false;
        length_ = length;
        return true;
    }

    // Makes room for `bytes` bytes at offset `at`, by moving the bytes from there on towards the end: insert(12, 4) for a
    // VLAN tag, insert(0, 50) for the headers of a tunnel. Returns false and changes nothing if `at` is outside or the
    // buffer has too little room. The contents of the new bytes are undefined.
    INLANE bool insert(uint32_t at, uint32_t bytes) {
        uint32_t before = length_;
        if (at > before || bytes > 0xffffffffu - before || !resize(before + bytes)) return false;
        detail::move(data_ + at + bytes, data_ + at, before - at);
        return true;
    }

    // Removes `bytes` bytes at offset `at`, by moving the bytes behind them towards the start. Returns false and changes
    // nothing if they are not all inside, or if no byte would be left.
    INLANE bool remove(uint32_t at, uint32_t bytes) {
        if (!has(at, bytes) || bytes == length_) return false;
        detail::move(data_ + at, data_ + at + bytes, length_ - at - bytes);
        length_ -= bytes;
        return true;
    }

    INLANE void set_u8(uint32_t at, uint8_t value) {
        if (has(at, 1)) data_[at] = value;
    }
    INLANE void set_be16(uint32_t at, uint16_t value) {
        if (has(at, 2)) detail::put(data_ + at, swap_bytes(value));
    }
    INLANE void set_be32(uint32_t at, uint32_t value) {
        if (has(at, 4)) detail::put(data_ + at, swap_bytes(value));
    }
    INLANE void store16(uint32_t at, bytes16 value) {
        if (INLANE_LIKELY(has(at, 16))) {
#if INLANE_GPU
            if (reinterpret_cast<uintptr_t>(data_ + at) % 16 == 0) {
                *reinterpret_cast<bytes16 *>(data_ + at) = value;
                return;
            }
#endif
            detail::put(data_ + at, value.low);
            detail::put(data_ + at + 8, value.high);
            return;
        }
        detail::put_some(data_, length_, at, value);
    }

    // Returns a copy of the first N bytes (a multiple of 16). If the packet is shorter, returns a copy of the
    // whole packet. On a GPU, all loads are in flight at the same time.
    template <uint32_t N> INLANE front_bytes<N> front() const { return front_bytes<N>(*this); }
};

// The first N bytes of a packet: a copy in registers on a GPU, a view on the CPU.
template <uint32_t N> class front_bytes : public reader<front_bytes<N>> {
    static_assert(N % 16 == 0, "N must be a multiple of 16");
    uint32_t length_;
#if INLANE_GPU
    bytes16 words_[N / 16];

  public:
    INLANE explicit front_bytes(const packet &from) : length_(from.length() < N ? from.length() : N) {
#pragma unroll
        for (uint32_t i = 0; i < N / 16; i++) words_[i] = from.load16(16 * i);
    }
    INLANE const uint8_t *data() const { return reinterpret_cast<const uint8_t *>(words_); }
#else
    const uint8_t *data_;

  public:
    INLANE explicit front_bytes(const packet &from)
        : length_(from.length() < N ? from.length() : N), data_(from.data()) {}
    INLANE const uint8_t *data() const { return data_; }
#endif
    INLANE uint32_t length() const { return length_; }
};

// Copies `bytes` bytes of a packet from offset `at`, if all are inside. All lanes of a warp call it.
INLANE void copy(uint8_t *to, const packet &from, uint32_t at, uint32_t bytes) {
    if (!from.has(at, bytes)) return;
    const uint8_t *source = from.data() + at;
#if INLANE_GPU
    // Copies single bytes until the destination is aligned to 16. Then copies sixteen bytes at a time, each
    // time from two aligned loads.
    uint32_t head = static_cast<uint32_t>(-reinterpret_cast<uintptr_t>(to) & 15);
    head = head < bytes ? head : bytes;
    for (uint32_t i = lane(); i < head; i += lanes()) to[i] = source[i];
    to += head;
    source += head;
    bytes -= head;
    uint32_t skew = reinterpret_cast<uintptr_t>(source) & 15, shift = skew % 8 * 8;
    const bytes16 *aligned = reinterpret_cast<const bytes16 *>(source - skew);
    // Never load beyond the packet: the neighbouring bytes may not be mapped.
    const uint8_t *first = from.data(), *last = from.data() + from.length();
    for (uint32_t i = lane(); i < bytes / 16; i += lanes()) {
        if (reinterpret_cast<const uint8_t *>(aligned + i) < first || reinterpret_cast<const uint8_t *>(aligned + i + 2) > last) {
            for (uint32_t byte = 0; byte < 16; byte++) to[i * 16 + byte] = source[i * 16 + byte];
            continue;
        }
        bytes16 low = aligned[i], high = aligned[i + 1];
        uint64_t a = skew < 8 ? low.low : low.high, b = skew < 8 ? low.high : high.low, c = skew < 8 ? high.low : high.high;
        bytes16 value = {shift ? a >> shift | b << (64 - shift) : a, shift ? b >> shift | c << (64 - shift) : b};
        reinterpret_cast<bytes16 *>(to)[i] = value;
    }
    for (uint32_t i = bytes / 16 * 16 + lane(); i < bytes; i += lanes()) to[i] = source[i];
#else
    __builtin_memcpy(to, source, bytes);
#endif
}

// The packets of one call of `burst`.
//
//   count()                  the number of packets, at most 1024
//   burst[i]                 packet i
//   set(i, verdict)          decides what becomes of packet i
//   set(i, verdict, length)  the same, and changes its length, which must fit the buffer's room
//
// Packets without a call of `set` are forwarded unchanged. Only one thread may call `set` for a packet.
// `burst[i]` is a copy: after `resize`, `insert` or `remove`, pass its new length to `set`.
class burst {
    const uint8_t *packets_;
    uint32_t stride_;
    uint32_t count_;
    uint32_t room_;
    inlane_packet_verdict *staged_;
    bool changed_ = false;

  public:
    INLANE burst(const void *packets, uint32_t stride, uint32_t count, uint32_t room, inlane_packet_verdict *staged)
        : packets_(static_cast<const uint8_t *>(packets)), stride_(stride), count_(count), room_(room), staged_(staged) {}

    INLANE uint32_t count() const { return count_; }
    INLANE packet operator[](uint32_t i) const {
        const inlane_descriptor *at =
            reinterpret_cast<const inlane_descriptor *>(packets_ + static_cast<uint64_t>(i) * stride_);
        return packet(reinterpret_cast<uint8_t *>(at->address), at->length, room_);
    }
    INLANE void set(uint32_t i, verdict what) { set(i, what, staged_[i].length); }
    INLANE void set(uint32_t i, verdict what, uint32_t length) {
        staged_[i].length = length;
        staged_[i].verdict = what;
        changed_ = true;
    }
    // Returns true if this thread called `set` for at least one packet.
    INLANE bool changed() const { return changed_; }
};

} // namespace inlane

#endif
