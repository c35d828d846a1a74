# Runs in a guest with a network card (--link): sets its address to $1, adds Linux's software RoCEv2 (rxe0),
# then runs a command.
#
#   lab/vm/run.py --link /tmp/cable --module rdma_rxe --module crc32_generic --file "$(command -v rdma)" \
#       --file lab/guest/rxe.sh -- sh /bin/rxe.sh 10.0.0.1/24 COMMAND...
#
# Start a second machine the same way, after the first and with another address.
set -e
ip addr add "$1" dev eth0
ip link set eth0 up
shift
rdma link add rxe0 type rxe netdev eth0
exec "$@"
