// Applies the first matching rule to each packet: drops it or sends it to a port. Forwards packets without a
// match. The host writes the rules into the state (src/builtins/rules.rs).
#include <inlane.h>

struct rule {
    uint32_t checks;     // which fields below must match: a sum of the constants in drop_rule
    uint32_t type;       // EtherType
    uint32_t version;    // the IP version, 4 or 6
    uint32_t protocol;
    uint32_t first_port; // the range of ports, both ends included
    uint32_t last_port;
    inlane::verdict verdict;
    uint32_t reserved;
    inlane::bytes16 net; // the network address, already masked
    inlane::bytes16 mask;
};
static_assert(sizeof(rule) == 64, "the host writes rules of 64 bytes");

struct drop_rule {
    static constexpr uint32_t reads = 96, writes = 0;
    static constexpr uint32_t type = 1, version = 2, protocol = 4, source_port = 8, destination_port = 16, source_net = 32,
                              destination_net = 64;
    uint32_t count;
    uint32_t reserved[15];
    rule rules[32];
    uint64_t hits[32];

    INLANE inlane::verdict packet(inlane::packet &packet) {
        auto head = packet.front<96>();
        inlane::layers at = inlane::layers_of(head);
        bool has_ports = !at.fragment && (at.protocol == 6 || at.protocol == 17 || at.protocol == 132) &&
                         at.version != 0 && head.has(at.upper, 4); // TCP, UDP, SCTP
        uint32_t ports = has_ports ? head.be32(at.upper) : 0;
        for (uint32_t i = 0; i < count; i++) {
            const rule &want = rules[i];
            uint32_t checks = want.checks;
            if ((checks & type && at.type != want.type) || (checks & version && at.version != want.version) ||
                (checks & protocol && (at.version == 0 || at.protocol != want.protocol)) ||
                (checks & source_port && !(has_ports && within(ports >> 16, want))) ||
                (checks & destination_port && !(has_ports && within(ports & 0xffff, want))) ||
                (checks & source_net && !in_net(head, at, want, 12, 8)) ||
                (checks & destination_net && !in_net(head, at, want, 16, 24)))
                continue;
            inlane::add(hits[i], 1);
            return want.verdict;
        }
        return inlane::forward;
    }

  private:
    INLANE static bool within(uint32_t port, const rule &want) {
        return port >= want.first_port && port <= want.last_port;
    }
    template <class Head>
    INLANE static bool in_net(const Head &head, const inlane::layers &at, const rule &want, uint32_t four, uint32_t six) {
        if (at.version == 0 || at.version != want.version) return false;
        inlane::bytes16 address = head.load16(at.ip + (at.version == 4 ? four : six));
        return ((address.low ^ want.net.low) & want.mask.low) == 0 && ((address.high ^ want.net.high) & want.mask.high) == 0;
    }
};
INLANE_FUNCTION(drop_rule)
