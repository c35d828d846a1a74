#!/usr/bin/env python3
"""Boots a Debian kernel in QEMU, runs one command in the guest, and exits with that command's status.

    lab/vm/run.py -- uname -r
    lab/vm/run.py --iommu --ivshmem 1M --vfio 1af4:1110 -- target/debug/inlane topo

The guest has no disk. Its root is an initramfs that contains busybox, the requested kernel modules, the command's program with
its shared libraries, and the files of --file. The command's stdout and stderr are passed through. The processor is emulated, so
KVM is not needed. A boot takes about three seconds.

Exit status: that of the command; 2 for wrong usage; 3 if a package is missing; 124 after a timeout; 125 if the guest ended
without reporting a status (the end of its console is then shown).

QEMU always ends with this script, and the temporary directory is removed.
"""

import argparse
import collections
import gzip
import lzma
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

PACKAGES = "qemu-system-x86 linux-image-amd64 busybox-static cpio"
TIMED_OUT, NO_STATUS = 124, 125


class NotReady(Exception):
    """A package or a right is missing: exit status 3."""


class Usage(Exception):
    """The arguments are wrong: exit status 2."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="512M", metavar="SIZE", help="memory of the guest (default 512M)")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="CPUs of the guest (default 2)")
    parser.add_argument("--kernel", default=os.environ.get("INLANE_LAB_KERNEL", "/"), metavar="DIR",
                        help="take the kernel from DIR/boot and DIR/lib/modules (default: the variable INLANE_LAB_KERNEL, or /)")
    parser.add_argument("--timeout", type=float, default=90, metavar="SECONDS", help="time limit, including the boot (default 90)")
    parser.add_argument("--name", default="vm", help="name in messages")
    parser.add_argument("--iommu", action="store_true", help="add an emulated Intel IOMMU with interrupt remapping")
    parser.add_argument("--ivshmem", action="append", default=[], metavar="SIZE[:FILE]",
                        help="add an ivshmem-plain device; FILE backs its memory, to share it")
    parser.add_argument("--doorbell", action="append", default=[], metavar="SOCKET[:VECTORS]",
                        help="add an ivshmem-doorbell device of the server at SOCKET")
    parser.add_argument("--nvme", action="append", default=[], metavar="SIZE[:FILE]",
                        help="add an NVMe drive with zeros, or with the contents of FILE, which is written")
    parser.add_argument("--link", action="append", default=[], metavar="SOCKET",
                        help="add a virtio network card, connected to that of a machine started later with the same SOCKET")
    parser.add_argument("--card", action="append", default=[], metavar="MODEL:SOCKET",
                        help="add a network card (e1000e, virtio-net-pci); it receives datagrams sent to SOCKET as frames, "
                             "and sends its frames as datagrams to SOCKET.out")
    parser.add_argument("--device", action="append", default=[], metavar="QEMU", help="add any other QEMU -device, such as edu")
    parser.add_argument("--vfio", action="append", default=[], metavar="DEVICE",
                        help="bind a device to vfio-pci, by address (0000:00:04.0) or vendor:device (1af4:1110)")
    parser.add_argument("--bind", action="append", default=[], metavar="DRIVER=DEVICE",
                        help="bind a device to another kernel driver")
    parser.add_argument("--module", action="append", default=[], metavar="NAME", help="load a kernel module first")
    parser.add_argument("--file", action="append", default=[], metavar="PATH[:GUEST]",
                        help="copy a file into the guest, to /bin/NAME by default; a program with its libraries")
    parser.add_argument("--kernel-arg", action="append", default=[], metavar="ARG", help="add an argument to the kernel's command line")
    parser.add_argument("--verbose", action="store_true", help="show the guest's console and QEMU's command line on stderr")
    parser.add_argument("command", nargs="+", help="a program of this machine or a busybox applet, and its arguments")
    return parser.parse_args()


class Kernel:
    """The newest installed kernel that has its modules."""

    def __init__(self, root):
        self.root = Path(root)

        def order(path):
            return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

        images = [p for p in self.root.joinpath("boot").glob("vmlinuz-*") if self.modules_of(p).joinpath("modules.dep").exists()]
        if not images:
            raise NotReady(f"there is no kernel with modules in {self.root.joinpath('boot')}")
        self.image = max(images, key=order)
        if not os.access(self.image, os.R_OK):
            raise NotReady(f"cannot read {self.image}: permission denied; run as root, or 'sudo chmod a+r {self.image}'")
        self.directory = self.modules_of(self.image)
        self.built_in = self.names("modules.builtin")
        self.paths, self.needs = {}, {}
        for line in self.directory.joinpath("modules.dep").read_text().splitlines():
            path, _, needs = line.partition(":")
            self.paths[self.name(path)] = path
            self.needs[self.name(path)] = [self.name(need) for need in needs.split()]

    def modules_of(self, image):
        return self.root / "lib/modules" / image.name.removeprefix("vmlinuz-")

    @staticmethod
    def name(path):
        return Path(path).name.split(".ko")[0].replace("-", "_")

    def names(self, listing):
        return {self.name(line) for line in self.directory.joinpath(listing).read_text().splitlines()}

    def in_order(self, wanted):
        """Returns the wanted modules and their dependencies, each after those that it needs."""
        order = []
        for name in map(self.name, wanted):
            if name in self.built_in:
                continue
            if name not in self.paths:
                raise NotReady(f"the kernel {self.image.name} has no module {name}")
            # modules.dep lists a module's direct dependency first. In reverse order, each module follows the
            # modules that it needs.
            order += [n for n in [*reversed(self.needs[name]), name] if n not in order]
        return order

    def unpacked(self, directory):
        """Unpacks the kernel's image, and returns the path of its content, an ELF file. A machine starts it in half the time, because
        the emulated processor need not unpack it. Keeps the file for later machines in .out/lab, or writes it to `directory` if
        .out/lab is not writable. Returns the image itself if it cannot be unpacked here or QEMU cannot start its content."""
        image, status = self.image.read_bytes(), self.image.stat()
        # The Linux/x86 boot protocol, version 2.08: setup_sects, payload_offset and payload_length.
        if image[0x202:0x206] != b"HdrS":
            return self.image
        offset, length = struct.unpack_from("<II", image, 0x248)
        start = (image[0x1F1] + 1) * 512 + offset
        kept = Path(__file__).resolve().parents[2] / f".out/lab/{self.image.name}-{status.st_mtime_ns}-{status.st_size}"
        if kept.exists():
            return kept
        elf = unpack(image[start:start + length])
        # QEMU starts an ELF file only by its PVH entry, a note of type 18.
        if not any(struct.pack("<III4s", 4, size, 18, b"Xen") in elf for size in (4, 8)):
            return self.image
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as new:
                new.write(elf)
            os.chmod(new.name, status.st_mode & 0o777)
            os.replace(new.name, kept)
            for other in kept.parent.glob(f"{self.image.name}-*"):
                if other != kept:
                    other.unlink(missing_ok=True)
        except OSError:
            kept = directory / "vmlinux"
            kept.write_bytes(elf)
        return kept

    def read(self, name):
        path = self.directory / self.paths[name]
        packed = path.read_bytes()
        match path.suffix:
            case ".xz":
                return lzma.decompress(packed)
            case ".gz":
                return gzip.decompress(packed)
            case ".zst":
                return subprocess.run(["zstd", "-dcq"], input=packed, stdout=subprocess.PIPE, check=True).stdout
        return packed


def unpack(payload):
    """Returns the content of a kernel's payload, or nothing if it is packed in a way that this script does not know."""
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(payload)
    if payload.startswith(b"\x28\xb5\x2f\xfd") and shutil.which("zstd"):
        # The size of the content follows the last frame.
        return subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    return b""


def libraries(program):
    """Returns the paths of a program's shared libraries."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    if missing := re.findall(r"(\S+) => not found", listing):
        raise NotReady(f"libraries of {program} are not installed: {' '.join(missing)}")
    return re.findall(r"(/\S+) \(0x", listing)


INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
mkdir -p /dev/shm /dev/pts /dev/hugepages; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
mount -t hugetlbfs huge /dev/hugepages
ip link set lo up
for tty in 1 2 3; do stty -F /dev/ttyS$tty raw -echo; done
end() { echo "$1" >/dev/ttyS3; reboot -f; }
for module in $(cat /modules.order); do
    insmod /modules/$module.ko || { echo "cannot load module $module" >/dev/ttyS2; end 3; }
done
# bind DRIVER DEVICE: the device is an address or vendor:device
bind() {
    found=
    for device in /sys/bus/pci/devices/*; do
        read -r vendor <$device/vendor; read -r id <$device/device; address=${device##*/}
        [ "$2" = "$address" ] || [ "$2" = "${vendor#0x}:${id#0x}" ] || continue
        found=yes
        [ ! -e $device/driver ] || echo $address >$device/driver/unbind
        echo $1 >$device/driver_override
        echo $address >/sys/bus/pci/drivers_probe
        [ "$(basename "$(readlink $device/driver)")" = $1 ] && continue
        echo "cannot bind $address to $1" >/dev/ttyS2; end 3
    done
    [ -n "$found" ] || { echo "no PCI device $2 to bind" >/dev/ttyS2; end 2; }
}
. /bindings
sh /command </dev/null >/dev/ttyS1 2>/dev/ttyS2
end $?
"""


def initramfs(options, kernel, directory):
    """Builds the guest's root below `directory` and packs it. Returns the path of the archive."""
    root = directory / "root"
    for name in "bin dev proc sys tmp modules lib lib64 etc".split():
        root.joinpath(name).mkdir(parents=True)

    def carry(source, guest):
        target = root / guest.lstrip("/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(Path(source).absolute())

    carry(shutil.which("busybox"), "/bin/busybox")
    command = list(options.command)
    files = [(path, guest) for path, _, guest in (entry.partition(":") for entry in options.file)]
    if "/" in command[0]:
        files.append((command[0], ""))
        command[0] = Path(command[0]).name
    for path, guest in files:
        if not Path(path).is_file():
            raise Usage(f"--file {path}: there is no such file")
        carry(path, guest or f"/bin/{Path(path).name}")
        for library in libraries(path):
            carry(library, library)

    bindings = [("vfio-pci", device) for device in options.vfio]
    bindings += [(driver, device) for driver, _, device in (entry.partition("=") for entry in options.bind)]
    wanted = list(options.module)
    wanted += ["vfio_iommu_type1"] if options.vfio else []
    wanted += [driver for driver, _ in bindings]
    wanted += ["virtio_pci", "virtio_net"] if options.link else []
    modules = kernel.in_order(wanted)
    for module in modules:
        root.joinpath("modules", f"{module}.ko").write_bytes(kernel.read(module))

    init = root / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    root.joinpath("modules.order").write_text(" ".join(modules) + "\n")
    root.joinpath("bindings").write_text("".join(f"bind {shlex.join(pair)}\n" for pair in bindings))
    root.joinpath("command").write_text(f"exec {shlex.join(command)}\n")

    archive = directory / "initramfs"
    names = "\0".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with archive.open("wb") as out:
        # -L packs the files that the links point to, because the guest does not have the linked paths.
        subprocess.run(["cpio", "-0oL", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), stdout=out, check=True)
    return archive


def size_and_file(entry):
    size, _, file = entry.partition(":")
    if not re.fullmatch(r"[0-9]+[KMG]?", size):
        raise Usage(f"'{entry}' must start with a size such as 1M")
    return size, file


def devices(options, directory):
    """Returns QEMU's arguments for the requested devices, in the order of their addresses."""
    for n, entry in enumerate(options.ivshmem):
        size, file = size_and_file(entry)
        backend = f"memory-backend-file,mem-path={file}" if file else "memory-backend-memfd"
        yield from ("-object", f"{backend},id=ivshmem{n},size={size},share=on")
        yield from ("-device", f"ivshmem-plain,memdev=ivshmem{n}")
    for n, entry in enumerate(options.doorbell):
        path, _, vectors = entry.partition(":")
        yield from ("-chardev", f"socket,id=doorbell{n},path={path}")
        yield from ("-device", f"ivshmem-doorbell,chardev=doorbell{n},vectors={vectors or 1}")
    for n, entry in enumerate(options.nvme):
        size, file = size_and_file(entry)
        if not file:
            file = directory / f"nvme{n}"
            file.touch()
            units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
            os.truncate(file, int(size.rstrip("KMG")) * units.get(size[-1], 1))
        yield from ("-drive", f"file={file},if=none,format=raw,id=nvme{n}")
        yield from ("-device", f"nvme,drive=nvme{n},serial=lab{n}")
    for n, path in enumerate(options.link):
        # Of two machines on one link, the first to start listens and the second connects. The MAC address
        # contains the process ID, so it differs.
        end = f"stream,id=link{n},addr.type=unix,addr.path={path},server={'off' if Path(path).exists() else 'on'}"
        mac = "52:54:00:%02x:%02x:%02x" % (os.getpid() >> 8 & 255, os.getpid() & 255, n)
        yield from ("-netdev", end, "-device", f"virtio-net-pci,netdev=link{n},mac={mac}")
    for n, entry in enumerate(options.card):
        model, _, path = entry.partition(":")
        if not path:
            raise Usage(f"'{entry}' names no socket; write MODEL:SOCKET")
        # A virtio device uses the IOMMU only if told so. Other devices always use it.
        behind = ",disable-legacy=on,iommu_platform=on" if model.startswith("virtio") else ""
        yield from ("-netdev", f"dgram,id=card{n},local.type=unix,local.path={path},"
                               f"remote.type=unix,remote.path={path}.out")
        yield from ("-device", f"{model},netdev=card{n}{behind}")
    for device in options.device:
        yield from ("-device", device)


def qemu(options, kernel, archive, directory, sockets):
    line = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-name", options.name]
    line += ["-machine", "q35,accel=tcg"]
    # Page tables of five levels would make each translation of an address slower. With ERMS, programs would copy memory by an instruction that
    # is emulated byte by byte.
    line += ["-cpu", "max,la57=off,erms=off", "-smp", str(options.cpus), "-m", options.memory]
    # tsc=reliable lets programs read the time without a system call, and the kernel without leaving the emulated processor. An emulated
    # processor needs no mitigations. Without both and with five levels, machines need a sixth more processor time.
    # no_timer_check disables the kernel's test of the timer, which fails on a busy host.
    # cryptomgr.notests leaves out the kernel's tests of its ciphers, which take a tenth of a boot.
    arguments = ["console=ttyS0", "panic=-1", "loglevel=4", "random.trust_cpu=on", "no_timer_check", "cryptomgr.notests"]
    # init_on_alloc=0 does not clear memory before the kernel uses it.
    arguments += ["tsc=reliable", "mitigations=off", "init_on_alloc=0"]
    arguments += options.kernel_arg
    if options.iommu:
        line += ["-device", "intel-iommu,intremap=on,caching-mode=on"]
        arguments += ["intel_iommu=on", "iommu=nopt"]
    for n, end in enumerate(sockets):
        line += ["-chardev", f"socket,id=serial{n},fd={end.fileno()}", "-serial", f"chardev:serial{n}"]
    line += devices(options, directory)
    line += ["-kernel", str(kernel.unpacked(directory)), "-initrd", str(archive), "-append", " ".join(arguments)]
    # setpriv makes the kernel kill QEMU when this script ends, even if the script is killed.
    return ["setpriv", "--pdeathsig", "KILL", "--", "qemu-system-x86_64", *line]


def relay(options, ends, deadline):
    """Passes the guest's output through until QEMU ends. Returns the command's status and the last lines of the console."""
    console, status = collections.deque(maxlen=200), b""
    with selectors.DefaultSelector() as selector:
        for name, end in ends.items():
            selector.register(end, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return TIMED_OUT, console
            for key, _ in selector.select(left):
                data = key.fileobj.recv(65536)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data == "status":
                    status += data
                elif key.data == "console":
                    console.append(data)
                    if options.verbose:
                        sys.stderr.buffer.write(data)
                        sys.stderr.flush()
                else:
                    stream = sys.stdout if key.data == "out" else sys.stderr
                    stream.buffer.write(data)
                    stream.flush()
    return int(status) if status.strip().isdigit() else NO_STATUS, console


def run(options):
    needed = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio"}
    if missing := [package for program, package in needed.items() if not shutil.which(program)]:
        raise NotReady(f"not installed: {' '.join(missing)}")
    kernel = Kernel(options.kernel)
    deadline = time.monotonic() + options.timeout
    with tempfile.TemporaryDirectory(prefix="inlane-vm-") as temporary:
        directory = Path(temporary)
        pairs = {name: socket.socketpair() for name in ("console", "out", "err", "status")}
        guest_ends = [pair[1] for pair in pairs.values()]
        line = qemu(options, kernel, initramfs(options, kernel, directory), directory, guest_ends)
        if options.verbose:
            print(shlex.join(line), file=sys.stderr)
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=[end.fileno() for end in guest_ends])
        try:
            for end in guest_ends:
                end.close()
            status, console = relay(options, {name: pair[0] for name, pair in pairs.items()}, deadline)
        finally:
            # terminate sends SIGTERM, on which QEMU removes the sockets that it created.
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if status == TIMED_OUT:
        print(f"{options.name}: stopped after the limit of {options.timeout:g} seconds", file=sys.stderr)
    if status in (TIMED_OUT, NO_STATUS) and not options.verbose:
        print(f"{options.name}: the end of the guest's console:", file=sys.stderr)
        sys.stderr.write(b"".join(console).decode(errors="replace")[-3000:])
    return status


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return run(options)
    except Usage as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 2
    except NotReady as error:
        print(f"{options.name}: {error}\nvirtual machines need: sudo apt-get install {PACKAGES}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
