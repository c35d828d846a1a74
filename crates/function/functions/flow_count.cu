// Counts packets and bytes per flow (addresses, protocol, ports) in a hash table, and forwards packets
// unchanged.
//
// The table uses open addressing. The function searches a packet's flow in `probes` places, starting at the
// flow's hash. If other flows occupy all these places, the packet counts as unplaced. Fragments count with
// port 0.
#include <inlane.h>

// src/builtins/flows.rs has the same structs for the host.
struct flow {
    uint32_t tag;      // 0: free; 1: a thread is filling the place; otherwise part of the hash
    uint32_t protocol; // IP version << 8 | protocol
    uint32_t ports;    // source << 16 | destination
    uint32_t reserved;
    inlane::bytes16 source; // in network order; IPv4 in the first four bytes
    inlane::bytes16 destination;
    uint64_t packets;
    uint64_t bytes;
};
static_assert(sizeof(flow) == 64, "a place fills one cache line of the CPU");

struct flow_count {
    static constexpr uint32_t reads = 96, writes = 0;
    static constexpr uint32_t places = 65536, probes = 16;
    uint64_t others;   // packets that are not IP
    uint64_t unplaced; // packets whose flow found no place
    alignas(64) flow flows[places];

    INLANE inlane::verdict packet(inlane::packet &packet) {
        auto head = packet.front<96>();
        inlane::layers at = inlane::layers_of(head);
        if (at.version == 0) {
            inlane::add(others, 1);
            return inlane::forward;
        }
        inlane::bytes16 source = {0, 0}, destination = {0, 0};
        if (at.version == 4) {
            uint64_t both = head.load16(at.ip + 12).low;
            source.low = both & 0xffffffff;
            destination.low = both >> 32;
        } else {
            source = head.load16(at.ip + 8);
            destination = head.load16(at.ip + 24);
        }
        bool has_ports = !at.fragment && (at.protocol == 6 || at.protocol == 17 || at.protocol == 132); // TCP, UDP, SCTP
        uint32_t ports = has_ports ? head.be32(at.upper) : 0;
        uint32_t protocol = static_cast<uint32_t>(at.version) << 8 | at.protocol;
        uint64_t hash = mix(mix(mix(source.low ^ mix(source.high)) ^ destination.low) ^ destination.high);
        hash = mix(hash ^ (static_cast<uint64_t>(protocol) << 32 | ports));
        uint32_t tag = static_cast<uint32_t>(hash >> 32) | 2;

        for (uint32_t probe = 0; probe < probes; probe++) {
            flow &place = flows[(hash + probe) % places];
            uint32_t found = inlane::load_acquire(place.tag);
            if (found == 0) found = inlane::compare_and_swap(place.tag, 0, 1);
            if (found == 0) { // the place was free, and this thread claimed it
                place.protocol = protocol;
                place.ports = ports;
                place.source = source;
                place.destination = destination;
                inlane::store_release(place.tag, tag);
                found = tag;
            }
            while (found == 1) found = inlane::load_acquire(place.tag); // another thread is filling the place
            if (found == tag && place.ports == ports && place.protocol == protocol && same(place.source, source) &&
                same(place.destination, destination)) {
                inlane::add(place.packets, 1);
                inlane::add(place.bytes, packet.length());
                return inlane::forward;
            }
        }
        inlane::add(unplaced, 1);
        return inlane::forward;
    }

  private:
    INLANE static bool same(const inlane::bytes16 &a, const inlane::bytes16 &b) {
        return ((a.low ^ b.low) | (a.high ^ b.high)) == 0;
    }
    INLANE static uint64_t mix(uint64_t value) {
        value *= 0x9e3779b97f4a7c15;
        return value ^ value >> 32;
    }
};
INLANE_FUNCTION(flow_count)
