//! Runs in two virtual machines that share an ivshmem device (`lab/ntb-two-vms.sh`) and checks the NTB
//! library between them: link, scratchpads, doorbells, puts, gets, atomics, collectives, all completion
//! modes, and the death and return of a peer.
//!
//! ```sh
//! ntb-check stay ADDR      # in one machine
//! ntb-check die ADDR       # in the other: aborts after its checks
//! ntb-check return ADDR    # in the same machine, some seconds later
//! ```

use anyhow::{Context, bail, ensure};
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::{Event, Ntb};
use inlane_ntb::ivshmem::{HEARTBEAT_TIMEOUT, Ivshmem};
use inlane_pgas::error::Error;
use inlane_pgas::transport::windows::{Settings, Windows};
use inlane_pgas::transport::{Operation, Reuse, Transport, no_check};
use inlane_pgas::world::{Compare, Signal, World};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, address] = arguments.as_slice() else { bail!("give a role and an address") };
    let ntb: Arc<dyn Ntb> = Arc::new(Ivshmem::open(address.parse()?, 2)?);
    println!("port {} of {}, windows of {} bytes", ntb.port(), ntb.ports(), ntb.inbound().len());
    ensure!(
        Ivshmem::open(address.parse()?, 3).is_err(),
        "opened the device with three ports, although two machines share it"
    );
    match role.as_str() {
        "return" => come_back(&ntb),
        "stay" | "die" => {
            bridge(&*ntb)?;
            let world = connect(&ntb, CompletionMode::Interrupt)?;
            library(&world)?;
            if role == "die" {
                println!("dying");
                std::process::abort();
            }
            outlive(&world)
        }
        _ => bail!("roles are stay, die and return"),
    }
}

fn peer(ntb: &dyn Ntb) -> u32 {
    1 - ntb.port()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> anyhow::Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(start.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Checks link, scratchpads, doorbells with masks and vectors, and events. The two machines synchronise
/// through a scratchpad.
fn bridge(ntb: &dyn Ntb) -> anyhow::Result<()> {
    const STEP: u32 = 100;
    let peer = peer(ntb);
    let step = |n: u32| -> anyhow::Result<()> {
        ntb.peer_scratchpad_write(peer, STEP, n)?;
        wait_until("step of the peer", || ntb.scratchpad_read(STEP) >= n)
    };
    let raised = |event: Event, limit: Duration| -> anyhow::Result<bool> {
        let descriptor = ntb.event(event)?;
        let time = Timespec::try_from(limit)?;
        let raised = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&time))? == 1;
        if raised {
            rustix::io::read(descriptor, &mut [0u8; 8])?;
        }
        Ok(raised)
    };
    let soon = Duration::from_millis(200);
    ntb.link_enable(true);
    wait_until("link", || ntb.link(peer).up)?;
    ensure!(raised(Event::Link, LIMIT)?, "no event for the link");
    step(1)?;
    ntb.peer_doorbell_set(peer, 0b101)?;
    ensure!(raised(Event::Doorbell(0), LIMIT)?, "no interrupt for the doorbell");
    ensure!(ntb.doorbell_read() == 0b101);
    step(2)?;
    ntb.peer_doorbell_set(peer, 0b001)?;
    step(3)?;
    ensure!(!raised(Event::Doorbell(0), soon)?, "a bit that was not cleared interrupted again");
    ntb.doorbell_clear(u64::MAX);
    ntb.doorbell_mask_set(1 << 40);
    step(4)?;
    ntb.peer_doorbell_set(peer, 1 << 40)?;
    ntb.peer_doorbell_set(peer, 1 << 41)?;
    ensure!(raised(Event::Doorbell(1), LIMIT)?, "no interrupt of the second vector");
    step(5)?;
    ensure!(ntb.doorbell_read() == 3 << 40, "the bit was not set while it was masked");
    ntb.doorbell_clear(u64::MAX);
    ntb.doorbell_mask_clear(u64::MAX);
    ensure!(ntb.peer_window(peer, 0).is_err(), "mapped a window that has no translation");
    step(6)?;
    println!("bridge: ok");
    Ok(())
}

fn connect(ntb: &Arc<dyn Ntb>, completion: CompletionMode) -> anyhow::Result<World<Windows>> {
    // Let waiting threads yield the CPU to other threads, because a virtual machine may have only one CPU.
    let settings = Settings { completion, yields: true, connect_timeout: LIMIT, ..Settings::default() };
    let bytes = ntb.inbound().len();
    Ok(World::new(Windows::connect(ntb.clone(), bytes, settings)?, 0, 0)?)
}

/// Checks the operations that OpenSHMEM programs use. Both PEs run them at the same time.
fn library(world: &World<Windows>) -> anyhow::Result<()> {
    const WORDS: usize = 50_000;
    let (me, peer) = (world.me(), 1 - world.me());
    let data = world.array::<u32>(WORDS)?;
    let flag = world.array::<u64>(4)?;
    let of = |pe: u32| (0..WORDS as u32).map(move |n| (pe + 1) * 1_000_000 + n);
    let mine: Vec<u32> = of(me).collect();
    world.put_signal(data, 0, &mine, (flag, 0, Signal::Set, 7), peer)?;
    world.wait_until(flag, 0, Compare::Eq, 7)?;
    for (n, value) in of(peer).enumerate() {
        ensure!(world.load(data, n)? == value, "word {n}");
    }
    world.barrier_all()?;
    let mut back = vec![0u32; WORDS];
    world.get(data, 0, &mut back, peer)?;
    ensure!(back == mine, "got other words than were put");
    for _ in 0..100 {
        world.fetch(Operation::Add, flag, 1, 1, 0, 0)?;
    }
    world.barrier_all()?;
    ensure!(world.fetch(Operation::Fetch, flag, 1, 0, 0, 0)? == 200, "atomics were lost");
    let start = Instant::now();
    for round in 1..=50u64 {
        world.put_signal(data, 0, &mine[..2], (flag, 2, Signal::Add, 1), peer)?;
        world.wait_until(flag, 2, Compare::Ge, round)?;
    }
    println!("library: ok, {:?} a round trip with interrupts", start.elapsed() / 50);
    let sums = world.array::<u32>(WORDS)?;
    world.barrier_all()?;
    world.sum(world.all(), sums, data)?;
    ensure!(world.load(sums, 9)? == 3_000_018, "sum");
    world.barrier_all()?;
    Ok(())
}

const AT: usize = 1 << 20;
const NEWS: &[u8] = b"bytes for the peer that returned";

/// Waits until the peer dies, and reconnects when the peer has restarted. Then puts bytes that the peer
/// compares.
fn outlive(world: &World<Windows>) -> anyhow::Result<()> {
    let peer = 1 - world.me();
    let start = Instant::now();
    let lost = world.wait(|| false);
    ensure!(matches!(lost, Err(Error::LinkLost { .. })), "waiting for a dead peer ended with {lost:?}");
    let took = start.elapsed();
    println!("lost: {} after {took:?}", lost.unwrap_err());
    ensure!(took < HEARTBEAT_TIMEOUT + Duration::from_secs(10), "the loss was noticed only after {took:?}");
    let transport = world.transport();
    let lost = transport.reconnect(peer, LIMIT).context("reconnecting")?;
    println!("again: {lost}");
    // SAFETY: the source is a constant outside the heaps, so it is readable and does not overlap the
    // destination. The heap of each PE is longer than AT + NEWS.len(). No allocation reaches AT.
    unsafe { transport.put(peer, AT, NEWS.as_ptr(), NEWS.len(), Reuse::AtReturn)? };
    transport.quiet()?;
    transport.notify(peer)?;
    transport.take_notification(peer, &mut no_check)?;
    println!("outlived: ok");
    Ok(())
}

fn come_back(ntb: &Arc<dyn Ntb>) -> anyhow::Result<()> {
    let world = connect(ntb, CompletionMode::Adaptive)?;
    let (transport, peer) = (world.transport(), 1 - world.me());
    transport.take_notification(peer, &mut no_check)?;
    let (base, length) = transport.symmetric();
    ensure!(AT + NEWS.len() <= length);
    let mut seen = vec![0u8; NEWS.len()];
    // SAFETY: the range is inside symmetric memory. The peer's notification shows that the peer has finished
    // writing.
    unsafe { std::ptr::copy(base.add(AT), seen.as_mut_ptr(), seen.len()) };
    ensure!(seen == NEWS, "other bytes arrived");
    transport.notify(peer)?;
    // Wait until the notification is delivered, because the process ends next.
    transport.quiet()?;
    println!("returned: ok");
    Ok(())
}
