// Assembles O-RAN U-plane packets (eCPRI message type 0, O-RAN.WG4.CUS section 8) in contiguous symbol
// buffers in the output region. Packets may arrive in any order. The file inlane_oran.h describes the output
// region.
//
// A window is the memory in which one slot (of the radio's time) is assembled. Slot n uses window n %
// windows. A slot is delivered when all of its PRBs have arrived, when its time limit has passed, or when a
// later slot needs its window. Packets that arrive for a delivered slot are late.
//
// Blocks of threads share windows. `writers` counts the blocks that write into a window. Such a block waits
// for nothing until it has finished. The block that delivers a window marks the window busy, then waits until
// no block writes into it. So blocks never wait for each other in a cycle.
#include <inlane.h>
#include <inlane_oran.h>

struct oran_reorder {
    static constexpr uint64_t output_bytes = 32 << 20;
    static constexpr uint32_t writes = 0;
    static constexpr uint32_t most_streams = 16, most_windows = 16, symbols = INLANE_ORAN_SYMBOLS, words = 9, none = ~0u;
    enum state : uint32_t { empty, busy, open, closed };
    enum reason : uint32_t { complete, time_up, overtaken };

    struct window {
        uint32_t tag;      // slot number << 2 | state
        uint32_t writers;  // blocks that are writing into this window
        uint32_t received; // PRBs that arrived
        uint32_t reserved;
        uint64_t since_ns; // when the window was opened or, if it is closed, when it was closed
        uint64_t unused;
        uint32_t prbs[most_streams][symbols][words]; // a bit per PRB that arrived
    };

    // Settings. The host (src/builtins/oran.rs) writes them. It also reads the counters.
    uint32_t streams;
    uint32_t prbs;               // per symbol
    uint32_t prb_bytes;
    uint32_t slots_per_subframe; // 1, 2, 4, 8: subcarriers of 15, 30, 60, 120 kHz
    uint32_t windows;            // a power of two
    uint32_t has_compression;    // not 0: sections carry udCompHdr
    uint32_t compression;        // the value that udCompHdr must have
    inlane::verdict taken;       // the verdict of packets that were assembled or late
    uint64_t limit_ns;
    uint32_t eaxc[most_streams];
    // Counters.
    uint64_t packets;
    uint64_t others;     // packets that are not U-plane or of another eAxC; they are forwarded
    uint64_t malformed;
    uint64_t late;       // packets of slots that were already delivered
    uint64_t received;   // PRBs that arrived
    uint64_t duplicates; // PRBs that had arrived before
    uint64_t missing;    // PRBs of delivered slots
    uint64_t delivered[3]; // slots, counted by the reason of their delivery
    uint64_t next_record;
    alignas(128) window at[most_windows];

    // A block's next action for the packets of one slot. Thread 0 decides on it for all threads of the block.
    struct plan {
        uint32_t window;
        uint32_t step; // one of enum step
        uint32_t why;
        uint32_t missing;
    };
    enum step : uint32_t { go, is_late, deliver_first, open_first, nothing };

    INLANE void burst(inlane::burst &burst, const inlane::context &call) {
        INLANE_SHARED uint32_t slot_of[INLANE_MAX_BURST]; // each packet's slot number; none: the packet is malformed or already handled
        INLANE_SHARED plan plan;
        expire(call, plan);
        for (uint32_t i = inlane::thread_index(); i < burst.count(); i += inlane::threads()) {
            inlane::packet packet = burst[i];
            header found = header_of(packet);
            slot_of[i] = found.slot;
            if (found.is_other) {
                inlane::add(others, 1);
                continue;
            }
            inlane::add(packets, 1);
            if (found.slot == none) inlane::add(malformed, 1);
            if (taken != inlane::forward) burst.set(i, taken);
        }
        inlane::sync();
        // Process the packets of the burst in rounds, one round for each O-RAN slot. There are few rounds,
        // because most bursts contain packets of one or two slots.
        for (uint32_t first = 0; first < burst.count(); first++) {
            uint32_t slot = slot_of[first];
            if (slot != none) round(burst, call, slot_of, slot, plan);
        }
    }

    INLANE void tick(const inlane::context &call) {
        INLANE_SHARED plan plan;
        expire(call, plan);
    }

  private:
    // ---- Packets. -------------------------------------------------------------------------------------------------------

    struct header {
        uint32_t slot;   // the number in the cycle of 256 frames; none: malformed
        uint32_t stream;
        uint32_t symbol;
        uint32_t begin;  // the offset of the first section
        uint32_t end;    // the offset at which the sections end
        bool is_other;
    };

    INLANE header header_of(const inlane::packet &packet) const {
        header found = {none, 0, 0, 0, 0, true};
        uint32_t at = 14;
        uint16_t type = packet.be16(12);
        if (type == 0x8100) {
            type = packet.be16(16);
            at = 18;
        }
        // Accepts only eCPRI (2.0, section 3.1.3) of version 1, without concatenation, with IQ data (type 0).
        if (type != 0xaefe || (packet.be16(at) & 0xf1ff) != 0x1000) return found;
        uint32_t id = packet.be16(at + 4);
        while (found.stream < streams && eaxc[found.stream] != id) found.stream++;
        if (found.stream == streams) return found;
        found.is_other = false;
        found.begin = at + 12;
        found.end = at + 4 + packet.be16(at + 2);
        uint32_t time = packet.be32(at + 8); // direction, version and filter; frame; subframe, slot and symbol
        uint32_t subframe = time >> 12 & 15, slot = time >> 6 & 63;
        found.symbol = time & 63;
        if (found.end > packet.length() || found.end < found.begin || subframe > 9 || slot >= slots_per_subframe ||
            found.symbol >= symbols)
            return found;
        found.slot = ((time >> 16 & 255) * 10 + subframe) * slots_per_subframe + slot;
        return found;
    }

    // Copies a packet's sections to their places in `output`. All lanes of a warp call it together.
    INLANE void assemble(const inlane::packet &packet, window &to, uint32_t index, uint8_t *output) {
        header from = header_of(packet);
        uint32_t fresh = 0, all = 0;
        bool wrong = false;
        for (uint32_t at = from.begin; at < from.end && !wrong;) {
            uint32_t section = packet.be32(at); // id 12, rb 1, symInc 1, startPrbu 10, numPrbu 8
            at += 4;
            uint32_t step = (section >> 19 & 1) + 1, start = section >> 8 & 1023, count = section & 255;
            from.symbol += section >> 18 & 1;
            if (count == 0) count = start < prbs ? (prbs - start + step - 1) / step : 0;
            if (has_compression) {
                wrong = packet.u8(at) != compression;
                at += 2;
            }
            wrong |= at > from.end || count == 0 || start + step * (count - 1) >= prbs || from.symbol >= symbols ||
                     from.end - at < count * prb_bytes;
            if (wrong) break;
            uint8_t *symbol = output + data_at(index) + (from.stream * symbols + from.symbol) * symbol_bytes();
            if (step == 1) {
                inlane::copy(symbol + start * prb_bytes, packet, at, count * prb_bytes);
            } else {
                for (uint32_t i = 0; i < count; i++)
                    inlane::copy(symbol + (start + 2 * i) * prb_bytes, packet, at + i * prb_bytes, prb_bytes);
            }
            at += count * prb_bytes;
            all += count;
            for (uint32_t word = inlane::lane(); word < words; word += inlane::lanes()) {
                uint32_t bits = bits_of(word, start, step, count);
                if (bits != 0) fresh += ones(bits & ~inlane::set_bits(to.prbs[from.stream][from.symbol][word], bits));
            }
        }
        fresh = inlane::warp_sum(fresh);
        if (inlane::lane() != 0) return;
        if (wrong) inlane::add(malformed, 1);
        inlane::add(to.received, fresh);
        inlane::add(received, fresh);
        if (all > fresh) inlane::add(duplicates, all - fresh);
    }

    // Returns 32-bit word `word` of a mask with `count` bits set: bits start, start + step, ...
    INLANE static uint32_t bits_of(uint32_t word, uint32_t start, uint32_t step, uint32_t count) {
        uint32_t base = word * 32, stop = start + step * (count - 1) + 1;
        if (stop <= base || start >= base + 32) return 0;
        uint32_t bits = ~0u;
        if (start > base) bits &= ~0u << (start - base);
        if (stop < base + 32) bits &= ~0u >> (base + 32 - stop);
        return step == 1 ? bits : bits & (start & 1 ? 0xaaaaaaaau : 0x55555555u);
    }
    INLANE static uint32_t ones(uint32_t bits) {
#if INLANE_GPU
        return __popc(bits);
#else
        return static_cast<uint32_t>(__builtin_popcount(bits));
#endif
    }

    // ---- Offsets in the output region. --------------------------------------------------------------------------------------

    INLANE uint32_t symbol_bytes() const { return (prbs * prb_bytes + 127) / 128 * 128; }
    INLANE uint32_t counts_at(uint32_t index) const { return 4096 + index * (most_streams * symbols * 4); }
    INLANE uint64_t data_at(uint32_t index) const {
        return counts_at(most_windows) + static_cast<uint64_t>(index) * streams * symbols * symbol_bytes();
    }

    // ---- Windows. All threads of a block call these functions, unless a comment says otherwise. ----

    static constexpr uint64_t half_cycle_ns = 1280000000; // half of 256 frames of 10 ms
    // The number of slots in a cycle. After it, slot numbers repeat.
    INLANE uint32_t cycle() const { return 2560 * slots_per_subframe; }

    // Processes the packets of the burst that belong to the radio slot `slot`.
    INLANE void round(inlane::burst &burst, const inlane::context &call, uint32_t *slot_of, uint32_t slot, plan &plan) {
        uint32_t index = slot % windows;
        window &window = at[index];
        for (;;) {
            if (inlane::thread_index() == 0) enter(window, slot, call.now_ns, plan);
            inlane::sync();
            uint32_t step = plan.step;
            if (step != deliver_first) break;
            deliver(index, call, plan);
        }
        if (plan.step == open_first) {
            clear(window);
            inlane::sync();
            if (inlane::thread_index() == 0) {
                window.since_ns = call.now_ns;
                inlane::add(window.writers, 1); // atomic, because other blocks may be joining and leaving
                inlane::store_release(window.tag, slot << 2 | open);
            }
            inlane::sync();
        }
        bool joined = plan.step != is_late;
        for (uint32_t i = inlane::warp(); joined && i < burst.count(); i += inlane::warps())
            if (slot_of[i] == slot) assemble(burst[i], window, index, call.output);
        inlane::sync();
        for (uint32_t i = inlane::thread_index(); i < burst.count(); i += inlane::threads()) {
            if (slot_of[i] != slot) continue;
            slot_of[i] = none;
            if (!joined) inlane::add(late, 1);
        }
        if (joined && inlane::thread_index() == 0) {
            inlane::fence(); // the samples are written before this block stops counting as a writer
            inlane::add(window.writers, ~0u);
            bool all = inlane::load_acquire(window.received) >= streams * symbols * prbs;
            plan.step = all && close(window, slot << 2 | open) ? deliver_first : nothing;
            plan.why = complete;
        }
        inlane::sync();
        if (joined && plan.step == deliver_first) deliver(index, call, plan);
        inlane::sync();
    }

    // Decides what this block does for a slot, and sets `plan.step`. Called by thread 0. After `go`, this
    // block is counted as a writer of the slot's window. After `open_first` or `deliver_first`, this block
    // has marked the window busy. No other block then uses the window.
    INLANE void enter(window &window, uint32_t slot, uint64_t now, plan &plan) {
        for (;;) {
            uint32_t tag = inlane::load_acquire(window.tag);
            uint32_t its = tag >> 2, ahead = (slot + cycle() - its) % cycle();
            bool newer = ahead > 0 && ahead < cycle() / 2;
            switch (tag & 3) {
            case busy: // another block is delivering or opening the window, and does not wait for this block
                continue;
            case open:
                if (ahead == 0) {
                    inlane::add(window.writers, 1);
                    inlane::fence();
                    if (inlane::load_acquire(window.tag) == tag) {
                        plan.step = go;
                        return;
                    }
                    inlane::add(window.writers, ~0u);
                    continue;
                }
                if (!newer) {
                    plan.step = is_late;
                    return;
                }
                if (!close(window, tag)) continue;
                plan.step = deliver_first;
                plan.why = overtaken;
                return;
            case closed:
                // Packets may arrive for a window whose last slot is already delivered. A packet of this slot
                // is late for half a cycle after the delivery. After that, its number means a slot of the
                // next cycle. A packet of an older slot is late only for twice the time limit after the
                // delivery. This time is shorter because a wrong slot number can make later correct packets
                // seem older.
                if (!newer && now <= window.since_ns + (ahead == 0 ? half_cycle_ns : 2 * limit_ns)) {
                    plan.step = is_late;
                    return;
                }
                [[fallthrough]];
            default:
                if (inlane::compare_and_swap(window.tag, tag, its << 2 | busy) != tag) continue;
                plan.step = open_first;
                return;
            }
        }
    }

    // Marks an open window busy and waits for its writers; called by thread 0. Returns false if another block
    // has marked the window busy first.
    INLANE static bool close(window &window, uint32_t tag) {
        if (inlane::compare_and_swap(window.tag, tag, (tag & ~3u) | busy) != tag) return false;
        inlane::fence();
        while (inlane::load_acquire(window.writers) != 0) {
        }
        return true;
    }

    // Delivers the slot in window `index`: counts its PRBs, fills the missing PRBs with zeros, writes its
    // record, and closes the window.
    INLANE void deliver(uint32_t index, const inlane::context &call, plan &plan) {
        window &window = at[index];
        if (inlane::thread_index() == 0) plan.missing = 0;
        inlane::sync();
        for (uint32_t i = inlane::warp(); i < streams * symbols; i += inlane::warps()) {
            const uint32_t *arrived = window.prbs[i / symbols][i % symbols];
            uint8_t *symbol = call.output + data_at(index) + i * symbol_bytes();
            uint32_t holes = 0;
            for (uint32_t prb = inlane::lane(); prb < prbs; prb += inlane::lanes()) {
                if (arrived[prb / 32] >> prb % 32 & 1) continue;
                holes++;
                for (uint32_t byte = 0; byte < prb_bytes; byte++) symbol[prb * prb_bytes + byte] = 0;
            }
            holes = inlane::warp_sum(holes);
            if (inlane::lane() != 0) continue;
            reinterpret_cast<uint32_t *>(call.output + counts_at(index))[i] = prbs - holes;
            inlane::add(plan.missing, holes);
        }
        inlane::sync();
        if (inlane::thread_index() == 0) {
            uint32_t slot = window.tag >> 2;
            uint64_t number = inlane::add(next_record, 1);
            oran_record &record = reinterpret_cast<oran_record *>(call.output)[number % INLANE_ORAN_RECORDS];
            record.opened_ns = window.since_ns;
            record.delivered_ns = call.now_ns;
            record.data = data_at(index);
            record.received = streams * symbols * prbs - plan.missing;
            record.missing = plan.missing;
            record.counts = counts_at(index);
            record.symbol_bytes = symbol_bytes();
            record.stream_bytes = symbols * symbol_bytes();
            record.prb_bytes = prb_bytes;
            record.frame = static_cast<uint8_t>(slot / slots_per_subframe / 10);
            record.subframe = static_cast<uint8_t>(slot / slots_per_subframe % 10);
            record.slot = static_cast<uint8_t>(slot % slots_per_subframe);
            record.reason = static_cast<uint8_t>(plan.why);
            inlane::add(missing, plan.missing);
            inlane::add(delivered[plan.why], 1);
            window.since_ns = call.now_ns;
            inlane::store_release(record.sequence, number + 1);
            inlane::store_release(window.tag, slot << 2 | closed);
        }
        inlane::sync();
    }

    // Clears a window's record of received PRBs, before a new slot uses the window.
    INLANE void clear(window &window) const {
        for (uint32_t i = inlane::thread_index(); i < streams * symbols * words; i += inlane::threads())
            window.prbs[i / words / symbols][i / words % symbols][i % words] = 0;
        if (inlane::thread_index() == 0) window.received = 0;
    }

    // Delivers the windows whose time limit has passed.
    INLANE void expire(const inlane::context &call, plan &plan) {
        bool mine = false;
        for (uint32_t i = inlane::thread_index(); i < windows; i += inlane::threads()) mine |= is_up(at[i], call.now_ns);
        if (!inlane::any(mine)) return;
        for (uint32_t i = 0; i < windows; i++) {
            if (inlane::thread_index() == 0) {
                uint32_t tag = inlane::load_acquire(at[i].tag);
                plan.step = is_up(at[i], call.now_ns) && close(at[i], tag) ? deliver_first : nothing;
                plan.why = time_up;
            }
            inlane::sync();
            if (plan.step == deliver_first) deliver(i, call, plan);
            inlane::sync();
        }
    }
    INLANE bool is_up(const window &window, uint64_t now) const {
        uint32_t tag = inlane::load_acquire(window.tag);
        return (tag & 3) == open && now > window.since_ns && now - window.since_ns >= limit_ns;
    }
};
INLANE_FUNCTION(oran_reorder)
