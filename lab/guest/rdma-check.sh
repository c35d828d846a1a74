# Runs in a guest without a network card. A pair of virtual interfaces joins Linux's software RoCEv2 (rxe0, on eth0) and inlane's
# RDMA (rdma-check, on veth0).
#
#   sh /bin/rdma-check.sh
#
# lab/tests/rxe.rs starts the machine with all files.
set -e
ip link add eth0 type veth # The kernel calls the other end veth0.
ip link set veth0 up
# Nothing on veth0 answers ARP, so the kernel gets the address from here.
exec sh /bin/rxe.sh 10.0.0.1/24 sh -c '
    arp -s 10.0.0.2 "$(cat /sys/class/net/veth0/address)" && exec rdma-check veth0 10.0.0.2 eth0 10.0.0.1'
