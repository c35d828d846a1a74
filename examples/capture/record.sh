#!/usr/bin/env bash
# examples/capture/record.sh [FILE]: records traffic of real programs into FILE (default: mixed.pcap beside
# this script) and lists its contents in README.md there. A veth pair connects two network namespaces; no
# packet leaves the machine. Needs root, and: iproute2 ethtool tcpdump tshark (with mergecap) iputils-ping
# nginx curl dnsmasq dig iperf3.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
file=$(realpath -m "${1:-$here/mixed.pcap}")
PATH=$PATH:/usr/sbin:/sbin

for program in ip ethtool tcpdump tshark mergecap ping nginx curl dnsmasq dig iperf3; do
    [ -n "$(command -v $program)" ] || { echo "record: $program is missing; install its package" >&2 && exit 3; }
done
[ "$(id -u)" = 0 ] || { echo "record: namespaces need root; run it with sudo" >&2 && exit 3; }

client=inlane-client-$$ server=inlane-server-$$
work=$(mktemp -d)
chmod 755 "$work"
pids=()
cleanup() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ip netns del $client 2>/dev/null || true
    ip netns del $server 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

in_client() { ip netns exec $client "$@"; }
in_server() { ip netns exec $server "$@"; }
background() { # NAMESPACE COMMAND...: runs it for as long as the recording lasts
    ip netns exec "$@" >"$work/log.${#pids[@]}" 2>&1 &
    pids+=($!)
}
record() { # FILE: records into it until `recorded`
    ip netns exec $client tcpdump -i wire -s 0 -U --time-stamp-precision=nano -w "$1" 2>"$1.log" &
    tcpdump=$!
    pids+=($tcpdump)
    until_ok test -s "$1"
}
recorded() {
    sleep 0.5
    kill -INT $tcpdump
    wait $tcpdump 2>/dev/null || true
}
until_ok() { # COMMAND...: repeats the command until it succeeds, for at most 10 s
    for _ in $(seq 100); do "$@" >/dev/null 2>&1 && return || sleep 0.1; done
    echo "record: this command failed for 10 s: $*" >&2
    return 1
}

ip netns add $client
ip netns add $server
ip link add wire netns $client address 02:00:00:00:00:0a type veth peer name wire netns $server address 02:00:00:00:00:0b
for end in "$client 1" "$server 2"; do
    set -- $end
    ip -n "$1" link set lo up
    # Disables offloads, so packets look as on a cable: segments fit the MTU, and the sender fills in
    # checksums.
    ip netns exec "$1" ethtool -K wire tx off rx off sg off tso off gso off gro off >/dev/null 2>&1
    ip -n "$1" address add "192.0.2.$2/24" dev wire
    ip -n "$1" address add "2001:db8::$2/64" dev wire nodad
done

for end in $client $server; do ip -n $end link set wire up; done
record "$work/1.pcap"

# ARP, ping, IPv6 neighbour discovery, and a ping that is larger than the MTU.
until_ok in_client ping -c 1 -W 1 192.0.2.2
in_client ping -q -c 3 -i 0.2 192.0.2.2 >/dev/null
until_ok in_client ping -c 1 -W 1 2001:db8::2
in_client ping -q -c 3 -i 0.2 2001:db8::2 >/dev/null
in_client ping -q -c 1 -s 4000 192.0.2.2 >/dev/null
in_client ping -q -c 1 -s 4000 2001:db8::2 >/dev/null

# DNS: dig queries names that dnsmasq defines, over UDP and TCP, IPv4 and IPv6, and one name that does not
# exist.
background $server dnsmasq --keep-in-foreground --no-resolv --no-hosts --no-daemon --pid-file= --user=root \
    --listen-address=192.0.2.2 --listen-address=2001:db8::2 --bind-interfaces \
    --address=/www.example.test/192.0.2.2 --address=/www.example.test/2001:db8::2 --local=/example.test/ \
    --txt-record=example.test,"$(printf 'a text of some length %.0s' 1 2 3 4 5 6 7 8 9)"
until_ok in_client dig +time=1 +tries=1 @192.0.2.2 www.example.test
for server_address in 192.0.2.2 2001:db8::2; do
    in_client dig @$server_address www.example.test A >/dev/null
    in_client dig @$server_address www.example.test AAAA >/dev/null
    in_client dig @$server_address example.test TXT >/dev/null
    in_client dig +tcp @$server_address nowhere.example.test >/dev/null
done

# HTTP: nginx and curl, small and larger files, one and several connections, IPv4 and IPv6.
mkdir "$work/www"
printf '<h1>inlane</h1>\n' >"$work/www/index.html"
seq 1 9000 >"$work/www/numbers.txt"
cat >"$work/nginx.conf" <<CONF
daemon off; pid $work/nginx.pid; error_log $work/nginx.log; user root;
events {}
http { access_log off; server { listen 192.0.2.2:80; listen [2001:db8::2]:80; root $work/www; } }
CONF
background $server nginx -c "$work/nginx.conf"
until_ok in_client curl -s -o /dev/null http://192.0.2.2/
for host in 192.0.2.2 '[2001:db8::2]'; do
    in_client curl -s -o /dev/null -o /dev/null -o /dev/null "http://$host/" "http://$host/numbers.txt" "http://$host/missing"
    in_client curl -s -I -o /dev/null "http://$host/"
done

# Short iperf3 runs, TCP and UDP.
background $server iperf3 -s -B 192.0.2.2
until_ok in_client iperf3 -c 192.0.2.2 -n 1K
in_client iperf3 -c 192.0.2.2 -n 150K >/dev/null
in_client iperf3 -c 192.0.2.2 -u -b 4M -n 60K >/dev/null
in_client iperf3 -c 192.0.2.2 -u -l 64 -b 1M -n 4K >/dev/null

# A tagged network on the same link, if the kernel has 802.1Q.
tagged=
if ip -n $client link add link wire name wire.7 type vlan id 7 2>/dev/null; then
    tagged="; a tagged network"
    ip -n $server link add link wire name wire.7 type vlan id 7
    for end in "$client 1" "$server 2"; do
        set -- $end
        ip -n "$1" address add "198.51.100.$2/24" dev wire.7
        ip -n "$1" link set wire.7 up
    done
    in_client ping -q -c 3 -i 0.2 198.51.100.2 >/dev/null
else
    echo "record: SKIPPED the tagged network: this kernel has no 802.1Q (module 8021q)" >&2
fi

# Jumbo frames go to a second file, because tcpdump captures no frame larger than the MTU that the link had
# when it started.
recorded
for end in $client $server; do ip -n $end link set wire mtu 9000; done
record "$work/2.pcap"
in_client ping -q -c 2 -i 0.2 -M do -s 8972 192.0.2.2 >/dev/null
in_client ping -q -c 2 -i 0.2 -M do -s 4000 2001:db8::2 >/dev/null
in_client curl -s -o /dev/null "http://192.0.2.2/numbers.txt"

recorded
mergecap -a -F nsecpcap -w "$file" "$work/1.pcap" "$work/2.pcap"

size=$(stat -c %s "$file")
[ "$size" -lt 1048576 ] || { echo "record: $file has $size bytes, the limit is 1 MiB" >&2 && exit 1; }
# A histogram of packet lengths, and the protocols that tshark found.
cat >"$here/README.md" <<TEXT
# A capture of real traffic

\`$(basename "$file")\`: traffic of real programs over a veth pair between two network namespaces. [\`record.sh\`](record.sh) generates the traffic and
records it with tcpdump.

* Format: classic pcap, nanosecond timestamps, Ethernet, $(tshark -r "$file" 2>/dev/null | wc -l) packets, $size bytes.
* Traffic: ARP and IPv6 neighbour discovery; ping, whole and fragmented; DNS from dnsmasq to dig over UDP and TCP; HTTP from nginx to
  curl; iperf3 over TCP and UDP$tagged; jumbo frames.
* Segmentation and checksum offloads are disabled, so packets look as they would on a cable.
* IP addresses are from the ranges for documentation (RFC 5737, RFC 3849). MAC addresses are locally administered.

## Contents

Frame lengths (\`tshark -z plen,tree\`) and protocols (\`tshark -z io,phs\`):

\`\`\`
$(tshark -q -r "$file" -z plen,tree 2>/dev/null | sed -n '/^Packet Lengths/,$p' | grep -v '^[=-]*$' | cut -c1-72 | sed 's/ *$//')
\`\`\`

\`\`\`
$(tshark -q -r "$file" -z io,phs 2>/dev/null | grep -v '^[=]*$' | grep -v '^Filter' | sed 's/ *$//')
\`\`\`
TEXT
echo "$file: $size bytes"
