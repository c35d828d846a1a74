//! `inlane ntb bench`: two PEs measure how fast they communicate, over windows or UCX.

use super::info::path;
use super::info_network::network_path;
use super::sizes::Sizes;
use super::transport;
use crate::exit::NotReady;
use crate::fields::flag;
use crate::output::Output;
use crate::signal;
use crate::values::{choice, count, time_within_an_hour};
use anyhow::{Context, bail};
use clap::Args;
use inlane_core::Error;
use inlane_core::completion::CompletionMode;
use inlane_ntb::device::{Capabilities, Ntb};
use inlane_ntb::discover::bridges;
use inlane_ntb::ivshmem::Ivshmem;
use inlane_pci::{Address, Sysfs};
use inlane_pgas::bench::{
    LEAST_MOVED, MeasuredOperation, Measurements, Note, Part, Plan, Point, StartedMover, UcxPerftest,
    WindowResult, figure, findings, results,
};
use inlane_pgas::launch::{Job, is_in_job};
use inlane_pgas::transport::select::TransportKind;
use inlane_pgas::transport::windows::MoverChoice;
use inlane_report::{Line, Plot, Scale};
use inlane_result::Document;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Measures windows or UCX: put, get, atomics, message rate and more
///
/// It measures put and get, atomics, both directions at once, the message rate, and delivery by completion mode.
/// Over windows, it also measures doorbells and a mover.
///
/// It starts two PEs on this machine, over the twin (a software model of a PCIe bridge) or over UCX. If mpirun
/// starts it as two PEs, it measures between these PEs. With --ivshmem, start it with the same flags in each of
/// two virtual machines that share the device.
#[derive(Args)]
#[command(after_help = "\
Examples:
  inlane ntb bench --sizes 8,4K,1M        three sizes
  inlane ntb bench --sizes 8..64M,x2 --only puts
                                          put beside a plain copy, every power of two
  inlane ntb bench --mover twin:30G --only mover --json -
                                          a DMA engine of 30 Gb/s, result as JSON
  UCX_TLS=tcp,self inlane ntb bench --transport ucx --ucx $(which ucx_perftest)
                                          UCX's TCP, beside UCX's own program
  mpirun -np 2 -H one,two inlane ntb bench --transport ucx
                                          between two machines")]
pub struct Bench {
    /// Transfer sizes: 1M, a list 4K,1M, or a range 4K..256M, each size four times the previous one
    /// (4K..256M,x2: two times)
    #[arg(long, value_name = "SIZES", default_value = "1..64M")]
    sizes: Sizes,
    /// Duration of one repeat, above zero and at most one hour. A repeat makes at least one operation
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = time_within_an_hour)]
    duration: Duration,
    /// Repeats of each case, 1 to 1000; the median is shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count::<u32>(1, 1000))]
    repeats: u32,
    /// How the PEs communicate [default: INLANE_NTB_TRANSPORT, else windows; ucx in a job on several machines]
    #[arg(long, value_name = "TRANSPORT", value_parser = choice::<TransportKind>(), conflicts_with = "ivshmem")]
    transport: Option<TransportKind>,
    /// Also measure puts of this ucx_perftest, in turns with inlane's puts. It uses shared memory, or with
    /// --transport ucx the transports of UCX_TLS. Both of its processes run on this machine
    #[arg(long, value_name = "PROGRAM")]
    ucx: Option<PathBuf>,
    /// Repeats in which ucx_perftest takes part, 1 to 1000; each starts two processes
    #[arg(long, value_name = "N", default_value_t = 3, requires = "ucx", value_parser = count::<u32>(1, 1000))]
    ucx_repeats: u32,
    /// Measure only one part: puts (compared with a plain copy, and with ucx_perftest if --ucx is given) or mover
    /// [default: all parts]
    #[arg(long, value_name = "PART", value_parser = part)]
    only: Option<Part>,
    /// The mover, over windows: twin (a DMA engine as fast as a core copies), twin:RATE in bits per second
    /// (twin:30G), or gpu:N (its copy engines) [default: twin]
    #[arg(long, value_name = "MOVER")]
    mover: Option<MoverChoice>,
    /// Measure the windows between two virtual machines instead of the twin. ADDRESS is the PCI address of
    /// the shared ivshmem device, which is bound to vfio-pci. Run the same command in the other machine
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["ucx", "mover"])]
    ivshmem: Option<Address>,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
    /// Write the result as CSV to a file, or to standard output for -, one line per row
    #[arg(long, value_name = "FILE|-")]
    csv: Option<PathBuf>,
    /// Draw bandwidth against size to an SVG file, with one curve for each completion mode. If --only puts
    /// is given, draw one curve for each operation
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs one of the two PEs of 'inlane ntb bench'
#[derive(Args)]
pub struct BenchPe {
    #[arg(long)]
    plan: String,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    mover: MoverChoice,
}

fn part(text: &str) -> Result<Part, &'static str> {
    match text {
        "puts" => Ok(Part::Puts),
        "mover" => Ok(Part::Mover),
        _ => Err("choose one of puts, mover"),
    }
}

/// Starts the mover. The mover may be a GPU here, unlike in `inlane ntb run`. The bench allocates the memory
/// of the windows itself and can register it with the GPU.
fn start(mover: &MoverChoice) -> inlane_pgas::error::Result<StartedMover> {
    match *mover {
        MoverChoice::Gpu(number) => through_gpu(number),
        MoverChoice::Twin(_) => Ok(StartedMover { mover: mover.start_twin()?, reach: Box::new(Ok) }),
    }
}

/// Opens the mover's GPU once before the PEs start, to report a missing GPU or driver. Without this, the PE
/// that opens the GPU would fail. The other PE might report its lost link first, which hides the cause.
///
/// # Errors
/// If the GPU cannot be opened.
fn check_mover(mover: &MoverChoice) -> inlane_pgas::error::Result<()> {
    match *mover {
        MoverChoice::Gpu(number) => through_gpu(number).map(|_| ()),
        MoverChoice::Twin(_) => Ok(()),
    }
}

#[cfg(not(feature = "cuda"))]
fn through_gpu(number: u32) -> inlane_pgas::error::Result<StartedMover> {
    let why = "this program was built without the cargo feature cuda; build it with --features cuda";
    Err(Error::device_environment(format!("gpu:{number}"), why).into())
}

#[cfg(feature = "cuda")]
fn through_gpu(number: u32) -> inlane_pgas::error::Result<StartedMover> {
    use inlane_core::region::{Location, Region};
    use inlane_cuda::{Gpu, GpuStagedCopy};
    let core = |error: inlane_cuda::Error| Error::from(error);
    let gpu = Gpu::open(number).map_err(core)?;
    let mover = Box::new(GpuStagedCopy::new(&gpu).map_err(core)?);
    let reach = move |memory: Region| {
        // SAFETY: a window of the twin is ordinary host memory. `memory.clone()` keeps it mapped while `host`
        // exists.
        let host = unsafe {
            Region::from_raw(memory.address(), memory.len(), Location::Host, Arc::new(memory.clone()))
        };
        Ok(gpu.register(&host).map_err(core)?)
    };
    Ok(StartedMover { mover, reach: Box::new(reach) })
}

/// Checks that the system can start a program: at its path, or in a folder of PATH if its name has no slash.
fn check_program(program: &std::path::Path) -> anyhow::Result<()> {
    if crate::offload::program::find(program).is_some() {
        return Ok(());
    }
    let what = if program.exists() { "it is not executable" } else { "there is no such program" };
    let why = format!("{}: {what}; give the path of ucx_perftest", flag("ucx").with(program.display()));
    Err(NotReady(why).into())
}

impl BenchPe {
    /// Runs one PE of the bench. PE 0 writes the measured points to a file.
    ///
    /// # Errors
    /// If a measurement fails, or the points cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan")?;
        let measured = inlane_pgas::bench::pe(&plan, None, || start(&self.mover))?;
        if !measured.points.is_empty() {
            std::fs::write(&self.out, serde_json::to_vec(&measured)?)
                .with_context(|| format!("writing {}", self.out.display()))?;
        }
        Ok(())
    }
}

impl Bench {
    fn mover(&self) -> MoverChoice {
        self.mover.clone().unwrap_or(MoverChoice::Twin(None))
    }

    /// Measures the windows between two PEs, and writes the result.
    ///
    /// # Errors
    /// If an option is invalid, the bridge fails, bytes arrive altered, or the result cannot be written.
    pub fn run(self) -> anyhow::Result<()> {
        if self.only == Some(Part::Mover) && self.sizes.largest() < LEAST_MOVED {
            let why = format!("a mover is measured from {LEAST_MOVED} bytes; give larger --sizes");
            return Err(Error::invalid(flag("only").with("mover"), why).into());
        }
        if let Some(program) = &self.ucx {
            if self.only == Some(Part::Mover) {
                let why =
                    "ucx_perftest is compared with puts, which --only mover leaves out; leave --ucx out";
                return Err(Error::invalid(flag("ucx").with(program.display()), why).into());
            }
            check_program(program)?;
        }
        let kind = transport::chosen(self.transport)?;
        let mover = self.mover();
        if self.ivshmem.is_none() && self.only != Some(Part::Puts) && kind.has_windows() {
            check_mover(&mover)?;
        }
        if !kind.has_windows() && (self.only == Some(Part::Mover) || self.mover.is_some()) {
            let what = match self.mover.is_some() {
                true => flag("mover").to_string(),
                false => flag("only").with("mover").into(),
            };
            let windows = transport::flags(TransportKind::has_windows);
            let why = format!("{kind} has no mover; leave {what} out, or choose {windows}");
            return Err(Error::invalid(what, why).into());
        }
        let plan = Plan {
            sizes: self.sizes.0.clone(),
            batch_us: self.duration.as_micros() as u64,
            repeats: self.repeats,
            ucx: self.ucx.clone().map(|program| UcxPerftest {
                program,
                repeats: self.ucx_repeats,
                by_environment: kind.uses_ucx(),
            }),
            transport: self.transport,
            only: self.only,
        };
        signal::on_signal(|signal, _| signal::end_by(signal)).context("cannot watch for Ctrl-C")?;
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), self.svg.as_deref())?;
        let mut bridge = None;
        let measured = match self.ivshmem {
            None if is_in_job() => {
                let measured = inlane_pgas::bench::pe(&plan, None, || start(&mover))?;
                if measured.points.is_empty() {
                    return Ok(());
                }
                measured
            }
            None => self.measure(&plan, kind)?,
            Some(address) => {
                let device = Ivshmem::open(address, 2)?;
                bridge = Some(device.capabilities().clone());
                let measured = inlane_pgas::bench::pe(&plan, Some(Arc::new(device)), || start(&mover))?;
                if measured.points.is_empty() {
                    crate::print_to_stderr("inlane: the other machine has the results");
                    return Ok(());
                }
                measured
            }
        };
        let points = &measured.points;
        let mut document = self.document(&measured, bridge.as_ref());
        let text = |out: &mut dyn std::io::Write, document: &Document<WindowResult>| {
            out.write_all(inlane_report::text(document).as_bytes())
        };
        output.write(&mut document, text, |document| {
            inlane_report::figure(
                &[plot(points, self.only, document.twin, measured.network.as_ref().map(|(kind, _)| *kind))],
                &document.source(),
            )
        })
    }

    fn measure(&self, plan: &Plan, transport: TransportKind) -> anyhow::Result<Measurements> {
        let out = std::env::temp_dir().join(format!("inlane-ntb-bench-{}.json", std::process::id()));
        let arguments = ["ntb", "bench-pe", "--plan", &serde_json::to_string(plan)?, "--out"]
            .into_iter()
            .map(Into::into)
            .chain([out.clone().into_os_string(), "--mover".into(), self.mover().to_string().into()])
            .collect::<Vec<_>>();
        let job =
            Job { pes: 2, transport, completion: CompletionMode::Adaptive, bind: false, ..Job::default() };
        let this = std::env::current_exe().context("finding this program")?;
        let (status, why) = job.run(&this.into_os_string(), &arguments)?;
        let points = std::fs::read(&out);
        let _ = std::fs::remove_file(&out);
        // Each process has already printed its own error. This error only adds the exit status.
        let why = || format!("the bench's processes failed: {}", why.unwrap_or_default());
        match status {
            0 => {}
            2 => return Err(Error::invalid("ntb bench", why()).into()),
            3 => return Err(NotReady(why()).into()),
            _ => bail!(why()),
        }
        Ok(serde_json::from_slice(&points.context("reading the points of the bench's processes")?)?)
    }

    /// Creates the result document. `bridge` has the capabilities of the measured bridge. It is `None` for
    /// the twin and for UCX.
    fn document(&self, measured: &Measurements, bridge: Option<&Capabilities>) -> Document<WindowResult> {
        let points = &measured.points;
        let mut document = Document::new("ntb bench");
        let windows = measured.network.is_none();
        document.twin = windows && bridge.is_none_or(|bridge| bridge.is_twin);
        let mut notes = findings(points);
        if windows && bridge.is_none_or(|bridge| bridge.is_memory_modelled) {
            notes.push(Note::Modelled);
        }
        notes.push(Note::SameMemory);
        if points.iter().any(|point| point.operation == MeasuredOperation::PeerPut) {
            notes.push(Note::Peer { shared_memory: windows });
        }
        document.notes = notes.iter().map(ToString::to_string).collect();
        let path = match &measured.network {
            Some((kind, reason)) => {
                network_path(*kind, points.first().map_or("", |point| &point.path), reason)
            }
            None => path(self.ivshmem, &bridges(&Sysfs::system())),
        };
        document.results = results(points, &path);
        document
    }
}

fn plot(points: &[Point], only: Option<Part>, twin: bool, network: Option<TransportKind>) -> Plot {
    let line = |points: Vec<(f64, f64)>, name: String, panel: &str| {
        let points = points.into_iter().map(|(x, y)| inlane_report::Point { x, y, spread: None }).collect();
        Line { points, ..Line::new(name, panel) }
    };
    let lines = if only == Some(Part::Puts) {
        let operations = [MeasuredOperation::Put, MeasuredOperation::PlainCopy, MeasuredOperation::PeerPut];
        let of = |operation: MeasuredOperation| {
            let points = figure(points, operation).into_iter().flat_map(|(_, points)| points).collect();
            line(points, operation.name().into(), "puts, issued")
        };
        operations.into_iter().map(of).filter(|line| !line.points.is_empty()).collect()
    } else {
        let panels = [
            (MeasuredOperation::PutByMover, "by mover"),
            (MeasuredOperation::PutDelivered, "put, delivered"),
        ];
        let of = |(operation, panel)| {
            let modes = figure(points, operation).into_iter();
            modes.map(move |(completion, points)| line(points, completion, panel))
        };
        panels.into_iter().flat_map(of).collect()
    };
    let what = match (network, twin) {
        (Some(kind), _) => kind.to_string(),
        (None, true) => "twin, a model".into(),
        (None, false) => "ivshmem, a model".into(),
    };
    Plot {
        title: format!("Bandwidth against transfer size ({what})"),
        x: "bytes".into(),
        y: "GB/s".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Linear,
        lines,
    }
}
