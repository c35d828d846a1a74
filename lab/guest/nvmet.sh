# Runs in a guest. Starts a Linux NVMe/TCP target with a 64 MiB drive at port 4420 of all addresses, then runs
# a command. The target grants at most 4 I/O queues.
# At port 4421 it also has the subsystem, but cannot access the drive there (asymmetric namespace access).
#
#   lab/vm/run.py --module nvmet_tcp --module nvme_tcp --module loop --file lab/guest/nvmet.sh -- sh /bin/nvmet.sh COMMAND...
#
# The subsystem is nqn.2024-01.inlane:lab. Linux's NVMe/TCP host connects with
#   echo traddr=127.0.0.1,transport=tcp,trsvcid=4420,nqn=nqn.2024-01.inlane:lab >/dev/nvme-fabrics     (then /dev/nvme0n1)
set -e
nqn=nqn.2024-01.inlane:lab
truncate -s 64M /tmp/drive
losetup /dev/loop0 /tmp/drive
mount -t configfs config /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/$nqn subsystems/$nqn/namespaces/1 ports/1 ports/2
echo 1 >subsystems/$nqn/attr_allow_any_host
echo 4 >subsystems/$nqn/attr_qid_max
echo /dev/loop0 >subsystems/$nqn/namespaces/1/device_path
echo 1 >subsystems/$nqn/namespaces/1/enable
echo inaccessible >ports/2/ana_groups/1/ana_state
for port in 1 2; do
    echo ipv4 >ports/$port/addr_adrfam
    echo tcp >ports/$port/addr_trtype
    echo 0.0.0.0 >ports/$port/addr_traddr
    echo $((4419 + port)) >ports/$port/addr_trsvcid
    ln -s /sys/kernel/config/nvmet/subsystems/$nqn ports/$port/subsystems/$nqn
done
cd /
exec "$@"
