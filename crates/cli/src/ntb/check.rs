//! `inlane ntb check`: runs every operation of the transport between the PEs and compares the results on both
//! sides.

use crate::values::count;
use clap::Args;
use inlane_core::completion::CompletionMode;
use inlane_core::units::counted;
use inlane_ntb::device::Ntb;
use inlane_ntb::ivshmem::Ivshmem;
use inlane_pci::Address;
use inlane_pgas::launch::Session;
use inlane_pgas::transport::Transport;
use inlane_pgas::transport::windows::layout::Layout;
use inlane_pgas::transport::windows::{Settings, Windows};
use inlane_pgas::world::World;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Checks every operation between all PEs over windows or UCX
///
/// It compares every result of put, get, signals, atomics and reductions. 'inlane ntb run' starts it, or it is
/// started in each of several virtual machines.
#[derive(Args)]
#[command(after_help = "\
Examples:
  # two PEs over the twin, a software model of a PCIe bridge
  inlane ntb run -n 2 -- inlane ntb check

  # the same over UCX
  inlane ntb run -n 2 --transport ucx -- inlane ntb check

  # in each of two virtual machines that share the device
  inlane ntb check --ivshmem 0000:00:01.0")]
pub struct Check {
    /// Check the windows between virtual machines instead of those between the PEs of this machine. ADDRESS is
    /// the PCI address of the shared ivshmem device, which is bound to vfio-pci. Run the same command in each of
    /// the machines [default: the twin that 'inlane ntb run' made]
    #[arg(long, value_name = "ADDRESS")]
    ivshmem: Option<Address>,
    /// Number of virtual machines that share the ivshmem device, 2 to 64
    #[arg(long, value_name = "N", default_value_t = 2, requires = "ivshmem", value_parser = count::<u32>(2, 64))]
    machines: u32,
    /// How waits end: poll, interrupt (sleep until woken) or adaptive (sleep for most of the expected time, then
    /// poll) [default: as given to 'inlane ntb run', else adaptive]
    #[arg(long, value_name = "MODE")]
    completion: Option<CompletionMode>,
    /// Number of rounds, 1 or more. Each round runs every operation between all pairs of PEs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count::<u32>(1, u32::MAX.into()))]
    rounds: u32,
}

impl Check {
    /// Runs every operation of the transport between the PEs. Prints one line if every result is right.
    ///
    /// # Errors
    /// The first wrong result, and errors of the bridge.
    pub fn run(self) -> anyhow::Result<()> {
        let heap = 1 << 20;
        if let Some(address) = self.ivshmem {
            let ntb: Arc<dyn Ntb> = Arc::new(Ivshmem::open(address, self.machines)?);
            let completion = self.completion.unwrap_or(CompletionMode::Adaptive);
            let connect_timeout = Duration::from_secs(60);
            let settings = Settings { completion, connect_timeout, ..Settings::default() };
            let (pes, name) = (ntb.ports(), ntb.capabilities().name);
            let bytes = Layout::overhead(pes) + World::<Windows>::symmetric_bytes(pes, 0, heap);
            return self.check(Windows::connect(ntb, bytes, settings)?, name);
        }
        let mut session = Session::from_environment(heap)?;
        at_least_two(session.pes())?;
        self.completion.into_iter().for_each(|mode| session.set_completion(mode));
        let membership = session.membership();
        // SAFETY: there are no static objects.
        let transport = unsafe { session.connect(heap, None)? };
        let name = transport.name();
        self.check(transport, &name)?;
        membership.finish();
        Ok(())
    }

    /// Checks a connected transport, and prints the result.
    fn check<T: Transport>(&self, transport: T, name: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        let world = World::new(transport, 0, 0)?;
        inlane_pgas::check::run(&world, self.rounds)?;
        world.leave()?;
        let (me, pes, seconds) = (world.me(), world.pes(), start.elapsed().as_secs_f64());
        let rounds = counted(self.rounds.into(), "round");
        crate::print(|out| {
            writeln!(out, "ntb check: {name}, PE {me} of {pes}, {rounds} in {seconds:.2} s, ok")
        })
    }
}

/// Returns an error for a job of fewer than two PEs.
fn at_least_two(pes: u32) -> Result<(), inlane_core::Error> {
    let why =
        "it needs at least two PEs; start it with: inlane ntb run -n 2 -- inlane ntb check, or by mpirun";
    if pes < 2 { Err(inlane_core::Error::invalid("ntb check", why)) } else { Ok(()) }
}
