//! Runs in a virtual machine and checks `inlane-pci` on QEMU's devices.
//!
//! ```sh
//! pci-check memory ADDR HELD FREE     # three ivshmem-plain: bound to vfio-pci, to a kernel driver, and to no driver
//! pci-check held ADDR                 # a device that is bound to a kernel driver
//! pci-check vfio ADDR UNVIABLE        # bound to vfio-pci; the second shares its group with a device that is not
//! pci-check dma ADDR                  # QEMU's educational device, bound to vfio-pci
//! pci-check doorbell ADDR ROUNDS      # ivshmem-doorbell, bound to vfio-pci, in each of two virtual machines
//! ```

use anyhow::{Context, bail, ensure};
use inlane_core::Region;
use inlane_core::mover::{Access, CpuMover, Mover};
use inlane_pci::vfio::{self, InterruptKind};
use inlane_pci::{Address, Bar, BarSpec, Error, Permission, Sysfs};
use std::time::{Duration, Instant};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = |n: usize| -> anyhow::Result<Address> {
        Ok(arguments.get(n).context("an address is missing")?.parse::<Address>()?)
    };
    match arguments.first().map(String::as_str) {
        Some("memory") => memory(address(1)?, address(2)?, address(3)?),
        Some("held") => held(address(1)?),
        Some("vfio") => refusals_of_vfio(address(1)?, address(2)?),
        Some("busy") => busy(address(1)?),
        Some("dma") => dma(address(1)?),
        Some("doorbell") => {
            doorbell(address(1)?, arguments.get(2).context("the number of rounds is missing")?.parse()?)
        }
        _ => bail!("give memory, held, vfio, dma or doorbell"),
    }
}

fn all() -> Permission {
    Permission::default().read().write()
}

/// Fails unless the expression returns an error that matches the pattern.
macro_rules! refused {
    ($why:literal, $open:expr, $pattern:pat) => {
        match $open {
            Err(error @ $pattern) => println!("refused {}: {error}", $why),
            Err(other) => bail!("{}: refused, but with {other:?}", $why),
            Ok(_) => bail!("{}: not refused", $why),
        }
    };
}

const RANGE: std::ops::Range<u64> = 0x4000..0xc000;

fn memory(ours: Address, held: Address, free: Address) -> anyhow::Result<()> {
    let sysfs = Sysfs::system();
    let open = |spec: &str, permission: Permission| Bar::open(&sysfs, &spec.parse()?, &permission);

    refused!(
        "without a flag",
        open(&format!("pci:{ours}/bar2"), Permission::default()),
        Error::NotPermitted { .. }
    );
    refused!("without a range", open(&format!("pci:{ours}/bar2"), all()), Error::NotPermitted { .. });
    refused!("beyond the BAR", open(&format!("pci:{ours}/bar2@1M+1"), all()), Error::TooSmall { .. });
    refused!(
        "write-combining under VFIO",
        open(&format!("pci:{ours}/bar2@0+4K:wc"), all()),
        Error::Unsupported { .. }
    );
    refused!("another BAR", open(&format!("pci:{ours}/bar5@0+4K"), all()), Error::NoBar { .. });
    let spec = format!("pci:{held}/bar2@0+4K");
    refused!("under a kernel driver", open(&spec, all()), Error::Held { .. });
    refused!("under a kernel driver, listed", open(&spec, all().device(held)), Error::Held { .. });
    let spec = format!("pci:{free}/bar2@0+4K");
    refused!("without a driver", open(&spec, all()), Error::NotAllowed { .. });

    let bar = Bar::open(&sysfs, &BarSpec::new(ours, 2, RANGE), &all())?;
    for access in Access::ALL.into_iter().filter(|access| access.is_available()) {
        check_bytes(&bar, access)?;
    }
    // Fill the permitted range with a pattern. After the machine ends, the host checks that the rest of the
    // memory is still zero.
    let mut mover = CpuMover::new(Access::Bytes8)?.reading_bars(true);
    mover.submit(&filled(&pattern(bar.len(), 0))?, &bar.region())?;
    mover.flush(&bar.region())?;
    let reader = open(&format!("pci:{ours}/bar2"), Permission::default().read())?;
    refused!("a store through a reader", reader.write_u32(0, 1), Error::NotPermitted { .. });
    let back = filled(&vec![0; bar.len()])?;
    mover.submit(&reader.region().slice(RANGE.start as usize, bar.len())?, &back)?;
    ensure!(bytes(&back) == pattern(bar.len(), 0), "another mapping sees other bytes");

    // A device without a driver may be disabled. Opening its BAR then fails. The error message says how to
    // enable the device, as done below.
    if let Err(error @ Error::NotReady { .. }) = open(&spec, all().device(free)) {
        println!("not ready: {error}");
        std::fs::write(sysfs.device(free).join("enable"), "1")?;
    }
    for suffix in ["", ":wc"] {
        let bar = open(&format!("{spec}{suffix}"), all().device(free))?;
        check_bytes(&bar, Access::Bytes4)?;
        check_bytes(&bar, Access::widest())?;
        println!("{}: stored and loaded", bar.name());
    }
    println!("memory: ok");
    Ok(())
}

fn held(address: Address) -> anyhow::Result<()> {
    let sysfs = Sysfs::system();
    let spec = BarSpec::new(address, 0, 0..0x1000);
    for permission in [Permission::default().read(), all(), all().device(address)] {
        refused!("under a kernel driver", Bar::open(&sysfs, &spec, &permission), Error::Held { .. });
    }
    refused!("under VFIO", vfio::Device::open(&sysfs, address), Error::Held { .. });
    Ok(())
}

fn refusals_of_vfio(ours: Address, unviable: Address) -> anyhow::Result<()> {
    let sysfs = Sysfs::system();
    refused!("in a group with others", vfio::Device::open(&sysfs, unviable), Error::NotViable { .. });
    let device = vfio::Device::open(&sysfs, ours)?;
    let again = vfio::Device::open(&sysfs, ours)?;
    println!("{device:?} and {again:?}: a process can open a device twice");
    let child =
        std::process::Command::new(std::env::current_exe()?).args(["busy", &ours.to_string()]).status()?;
    ensure!(child.success(), "the other process: {child}");
    drop((device, again));
    // SAFETY: the call only changes the user of this process.
    ensure!(unsafe { libc::setuid(65534) } == 0, "cannot become nobody");
    refused!("without privileges", vfio::Device::open(&sysfs, ours), Error::Denied { .. });
    println!("vfio: ok");
    Ok(())
}

fn busy(address: Address) -> anyhow::Result<()> {
    refused!("open elsewhere", vfio::Device::open(&Sysfs::system(), address), Error::Busy { .. });
    Ok(())
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| ((n + seed).wrapping_mul(0x9e37_79b1) >> 13) as u8 | 1).collect()
}

fn filled(contents: &[u8]) -> anyhow::Result<Region> {
    let memory = Region::host(contents.len())?;
    // SAFETY: the memory has this length, and nothing else uses it.
    unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), memory.as_ptr(), contents.len()) };
    Ok(memory)
}

fn bytes(memory: &Region) -> Vec<u8> {
    // SAFETY: no transfer to this memory is in flight.
    unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()).to_vec() }
}

fn check_bytes(bar: &Bar, access: Access) -> anyhow::Result<()> {
    let (region, mut mover) = (bar.region(), CpuMover::new(access)?.reading_bars(true));
    let data = pattern(bar.len(), access.width());
    let back = filled(&vec![0; bar.len()])?;
    mover.submit(&filled(&data)?, &region)?;
    mover.flush(&region)?;
    mover.submit(&region, &back)?;
    ensure!(bytes(&back) == data, "{}: access {access}: other bytes came back", bar.name());
    // Copy 12 bytes at offset 4, because neither number is a multiple of the wide accesses.
    mover.submit(&filled(b"a dozen byte")?, &region.slice(4, 12)?)?;
    mover.submit(&region.slice(4, 12)?, &back.slice(0, 12)?)?;
    ensure!(bytes(&back.slice(0, 12)?) == b"a dozen byte");
    Ok(())
}

/// Registers of QEMU's educational device (QEMU, docs/specs/edu). The device copies between the machine's
/// memory and its own 4 KiB at 0x40000.
mod edu {
    pub const IDENTIFICATION: usize = 0x00;
    pub const LIVENESS: usize = 0x04;
    pub const INTERRUPT_STATUS: usize = 0x24;
    pub const ACKNOWLEDGE: usize = 0x64;
    pub const SOURCE: usize = 0x80;
    pub const DESTINATION: usize = 0x88;
    pub const COUNT: usize = 0x90;
    pub const COMMAND: usize = 0x98;
    pub const BUFFER: u64 = 0x40000;
    pub const START: u64 = 1;
    pub const TO_MEMORY: u64 = 2;
    pub const RAISE: u64 = 4;
}

fn dma(address: Address) -> anyhow::Result<()> {
    const IOVA: u64 = 0x10_0000;
    const BYTES: usize = 1024;
    let device = vfio::Device::open(&Sysfs::system(), address)?;
    let bar = Bar::of_device(&device, &BarSpec::new(address, 0, 0..0x1000), &all())?;
    ensure!(bar.read_u32(edu::IDENTIFICATION)? & 0xff == 0xed, "not the educational device");
    bar.write_u32(edu::LIVENESS, 0x1234_5678)?;
    ensure!(bar.read_u32(edu::LIVENESS)? == !0x1234_5678);

    let interrupts = device.interrupts(InterruptKind::Msi, 1)?;
    refused!("too many vectors", device.interrupts(InterruptKind::Msi, 99), Error::Unsupported { .. });
    let memory = Region::host(8192)?;
    let mapping = device.map_dma(&memory, IOVA)?;
    refused!("the same address twice", device.map_dma(&memory, IOVA), Error::Os { .. });
    refused!("half a page", device.map_dma(&memory.slice(0, 100)?, 0), Error::Unsupported { .. });
    let write = |bytes: &[u8]| {
        // SAFETY: the memory has two pages, and the device is idle.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.as_ptr(), bytes.len()) }
    };
    let second_page = || {
        // SAFETY: the memory has two pages, and the device is idle.
        unsafe { std::slice::from_raw_parts(memory.as_ptr().add(4096), BYTES).to_vec() }
    };
    let transfer = |source: u64, destination: u64, command: u64| -> anyhow::Result<Duration> {
        bar.write_u64(edu::SOURCE, source)?;
        bar.write_u64(edu::DESTINATION, destination)?;
        bar.write_u64(edu::COUNT, BYTES as u64)?;
        let start = Instant::now();
        bar.write_u64(edu::COMMAND, edu::START | edu::RAISE | command)?;
        ensure!(interrupts.wait(Duration::from_secs(20))? == [(0, 1)], "no interrupt, or several");
        bar.write_u32(edu::ACKNOWLEDGE, bar.read_u32(edu::INTERRUPT_STATUS)?)?;
        Ok(start.elapsed())
    };
    let data = pattern(BYTES, 7);
    write(&data);
    transfer(IOVA, edu::BUFFER, 0)?;
    ensure!(second_page() == [0; BYTES]);
    let took = transfer(edu::BUFFER, IOVA + 4096, edu::TO_MEMORY)?;
    ensure!(second_page() == data, "DMA returned other bytes");
    println!("dma: {BYTES} bytes to the device and back, interrupt after {took:?}");

    // The memory is unmapped from the IOMMU, so a further copy by the device must not change the memory.
    drop(mapping);
    write(&pattern(8192, 9));
    let before = second_page();
    transfer(edu::BUFFER, IOVA + 4096, edu::TO_MEMORY)?;
    ensure!(second_page() == before, "the device wrote to unmapped memory");
    println!("dma: ok");
    Ok(())
}

/// The offsets of registers in BAR 0 of ivshmem, in bytes (QEMU, docs/specs/ivshmem-spec).
const IV_POSITION: usize = 8;
const DOORBELL: usize = 12;

/// Checks that two machines interrupt each other, one after the other. Before each interrupt, a machine
/// writes the number of the round to its word in the shared memory.
fn doorbell(address: Address, rounds: u32) -> anyhow::Result<()> {
    const LIMIT: Duration = Duration::from_secs(120);
    const VECTOR: u32 = 1;
    let device = vfio::Device::open(&Sysfs::system(), address)?;
    let registers = Bar::of_device(&device, &BarSpec::new(address, 0, 0..0x100), &all())?;
    let shared = Bar::of_device(&device, &BarSpec::new(address, 2, 0..0x1000), &all())?;
    let me = registers.read_u32(IV_POSITION)?;
    ensure!(me < 2, "this machine is number {me}, and there should be two");
    let peer = 1 - me;
    let word = |of: u32| of as usize * 64;
    let interrupts = device.interrupts(InterruptKind::MsiX, 2)?;

    // Each machine writes this value when it has enabled its interrupts, and waits for the other machine's
    // value. If a machine sent an interrupt before that, the other machine could miss it.
    const READY: u32 = 0x5eed;
    shared.write_u32(word(me), READY)?;
    let start = Instant::now();
    while shared.read_u32(word(peer))? < READY {
        ensure!(start.elapsed() < LIMIT, "peer {peer} did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    for round in 1..=rounds {
        if me == 0 {
            shared.write_u32(word(me), READY + round)?;
            registers.write_u32(DOORBELL, peer << 16 | VECTOR)?;
        }
        let raised = interrupts.wait(LIMIT)?;
        ensure!(raised == [(VECTOR as usize, 1)], "round {round}: {raised:?} was raised");
        let seen = shared.read_u32(word(peer))?;
        ensure!(seen == READY + round, "round {round}: the peer's word is {seen}");
        if me == 1 {
            shared.write_u32(word(me), READY + round)?;
            registers.write_u32(DOORBELL, peer << 16 | VECTOR)?;
        }
    }
    println!("doorbell: machine {me}, {rounds} rounds of {:?}, ok", start.elapsed() / rounds.max(1));
    // Wait, because the peer may still be handling the last interrupt when this machine ends.
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}
