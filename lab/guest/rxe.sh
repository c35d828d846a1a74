# In a guest with a network card (--link): address $1 on it, Linux's RoCEv2 in software (rxe0) over it, then a command.
#
#   lab/vm/run.py --link /tmp/cable --module rdma_rxe --module crc32_generic --file "$(command -v rdma)" \
#       --file lab/guest/rxe.sh -- sh /bin/rxe.sh 10.0.0.1/24 COMMAND...
#
# and the same in a second machine with another address, started after the first.
set -e
ip addr add "$1" dev eth0
ip link set eth0 up
shift
rdma link add rxe0 type rxe netdev eth0
exec "$@"
