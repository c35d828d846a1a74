//! `inlane ntb bench`: two processes measure the windows between them.

use crate::exit::NotReady;
use crate::output::Output;
use crate::signal;
use anyhow::{Context, bail};
use clap::Args;
use inlane_core::completion::CompletionMode;
use inlane_core::region::{Location, Region};
use inlane_core::result::{Document, NotTaken, Path, TransferResult, Verification};
use inlane_core::{Error, units};
use inlane_cuda::{Gpu, GpuStagedCopy};
use inlane_ntb::ivshmem::Ivshmem;
use inlane_pci::Address;
use inlane_pgas::bench::{
    LEAST_MOVED, Operation, Part, Plan, Point, Started, Ucx, figure, findings, results,
};
use inlane_pgas::launch::Job;
use inlane_report::{Line, Plot, Scale};
use inlane_twin::{DmaCosts, DmaEngine};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Measure windows: put, get, both ways, message rate, delivery by poll, interrupt and adaptive, doorbells, a mover
///
/// Between two processes of this machine; with --ivshmem, run it with the same options in each of two virtual machines that
/// share the device.
#[derive(Args)]
pub struct Bench {
    /// Smallest size
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = units::parse_size)]
    from: u64,
    /// Largest size; each is four times the one before
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = units::parse_size)]
    to: u64,
    /// Every power of two instead of every second one
    #[arg(long)]
    fine: bool,
    /// Time of one batch
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = units::parse_time)]
    batch: Duration,
    /// Batches of which the median is given
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Measure this ucx_perftest's shared-memory put beside ours, taking turns
    #[arg(long, value_name = "PROGRAM")]
    ucx: Option<PathBuf>,
    /// Turns it takes, each the start of two processes (at most --repeats)
    #[arg(long, value_name = "N", default_value_t = 3)]
    ucx_repeats: u32,
    /// Measure only: puts (beside a plain copy and --ucx), or mover
    #[arg(long, value_name = "PART", value_parser = part)]
    only: Option<Part>,
    /// Who moves bulk: twin (a DMA engine's, as fast as a core copies), twin:RATE, or gpu:N (its copy engines)
    #[arg(long, value_name = "MOVER", default_value = "twin")]
    mover: BenchMover,
    /// Over this ivshmem device, bound to vfio-pci, instead of the twin
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["ucx", "mover"])]
    ivshmem: Option<Address>,
    /// Write the results as JSON ('-': stdout)
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Draw bandwidth against size by completion
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// One of the two processes
#[derive(Args)]
pub struct BenchPe {
    #[arg(long)]
    plan: String,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    mover: BenchMover,
}

fn part(text: &str) -> Result<Part, &'static str> {
    match text {
        "puts" => Ok(Part::Puts),
        "mover" => Ok(Part::Mover),
        _ => Err("write puts or mover"),
    }
}

/// Who moves bulk between memories that the bench itself made, each as the mover wants it: so it may be a GPU, and a twin as fast as asked.
/// What moves bulk of any program ([`inlane_pgas::launch::BulkMover`]) must take memory as it comes.
#[derive(Clone, Debug)]
enum BenchMover {
    /// A DMA engine's twin of so many bits a second.
    Twin(Option<f64>),
    /// The copy engines of a GPU.
    Gpu(u32),
}

impl std::str::FromStr for BenchMover {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("twin", "") => Ok(Self::Twin(None)),
            ("twin", rate) => match units::parse_rate(rate)? {
                units::Rate::Bits(bits) => Ok(Self::Twin(Some(bits))),
                _ => bail!("a mover has no packets; write twin:30G"),
            },
            ("gpu", number) => Ok(Self::Gpu(number.parse().context("write gpu:0")?)),
            _ => bail!("write twin, twin:RATE (twin:30G) or gpu:N"),
        }
    }
}

impl std::fmt::Display for BenchMover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Twin(None) => write!(f, "twin"),
            Self::Twin(Some(bits)) => write!(f, "twin:{bits}"),
            Self::Gpu(number) => write!(f, "gpu:{number}"),
        }
    }
}

impl BenchMover {
    fn start(&self) -> inlane_pgas::error::Result<Started> {
        let costs = match *self {
            Self::Twin(None) => DmaCosts::unlimited(),
            Self::Twin(Some(bits)) => DmaCosts { to_device: bits / 8.0, ..DmaCosts::unlimited() },
            Self::Gpu(number) => return through_gpu(number),
        };
        Ok(Started { mover: Box::new(DmaEngine::new("dma twin", costs)?), reach: Box::new(Ok) })
    }
}

fn through_gpu(number: u32) -> inlane_pgas::error::Result<Started> {
    let core = |error: inlane_cuda::Error| inlane_core::Error::from(error);
    let gpu = Gpu::open(number).map_err(core)?;
    let mover = Box::new(GpuStagedCopy::new(&gpu).map_err(core)?);
    let reach = move |memory: Region| {
        // SAFETY: a window of the twin is host memory like any other; the keeper holds its mapping.
        let host = unsafe {
            Region::from_raw(memory.address(), memory.len(), Location::Host, Arc::new(memory.clone()))
        };
        Ok(gpu.register(&host).map_err(core)?)
    };
    Ok(Started { mover, reach: Box::new(reach) })
}

impl BenchPe {
    /// Takes part; PE 0 writes the points.
    pub fn run(self) -> anyhow::Result<()> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan")?;
        let points = inlane_pgas::bench::pe(&plan, None, || self.mover.start())?;
        if !points.is_empty() {
            std::fs::write(&self.out, serde_json::to_vec(&points)?)
                .with_context(|| format!("writing {}", self.out.display()))?;
        }
        Ok(())
    }
}

impl Bench {
    fn sizes(&self) -> Vec<u64> {
        let step = if self.fine { 2 } else { 4 };
        let mut sizes: Vec<u64> =
            std::iter::successors(Some(self.from.max(1)), |size| size.checked_mul(step))
                .take_while(|size| *size <= self.to)
                .collect();
        // 8 bytes are what the message rate and the peers are asked for.
        if self.from <= 8 && self.to >= 8 && !sizes.contains(&8) {
            sizes.push(8);
        }
        if sizes.last() != Some(&self.to) && !sizes.contains(&self.to) {
            sizes.push(self.to);
        }
        sizes.sort_unstable();
        sizes
    }

    /// Runs the two processes and reports.
    pub fn run(self) -> anyhow::Result<()> {
        let sizes = format!("sizes from {} to {}", self.from, self.to);
        if self.from > self.to || self.to > 4 << 30 {
            return Err(Error::invalid(sizes, "give --from below --to, and --to up to 4G").into());
        }
        if self.only == Some(Part::Mover) && self.to < LEAST_MOVED {
            return Err(Error::invalid(sizes, format!("a mover is measured from {LEAST_MOVED} on")).into());
        }
        let plan = Plan {
            sizes: self.sizes(),
            batch_us: self.batch.as_micros() as u64,
            repeats: self.repeats,
            ucx: self.ucx.clone().map(|program| Ucx { program, repeats: self.ucx_repeats }),
            only: self.only,
        };
        let output = Output::open(self.json.as_deref(), None, self.svg.as_deref())?;
        signal::on_signal(|signal, _| signal::end_by(signal)).context("cannot watch for Ctrl-C")?;
        let points = match self.ivshmem {
            None => self.measure(&plan)?,
            Some(address) => {
                let bridge = Ivshmem::open(address, 2)?;
                let points = inlane_pgas::bench::pe(&plan, Some(Arc::new(bridge)), || self.mover.start())?;
                if points.is_empty() {
                    crate::say("inlane: the other machine has the results");
                    return Ok(());
                }
                points
            }
        };
        let mut document = self.document(&points);
        let text = |out: &mut dyn std::io::Write, document: &Document<TransferResult>| {
            out.write_all(inlane_report::text(document).as_bytes())
        };
        output.write(&mut document, text, |document| {
            inlane_report::figure(&[plot(&points)], &document.source())
        })
    }

    fn measure(&self, plan: &Plan) -> anyhow::Result<Vec<Point>> {
        let out = std::env::temp_dir().join(format!("inlane-ntb-bench-{}.json", std::process::id()));
        let arguments = ["ntb", "bench-pe", "--plan", &serde_json::to_string(plan)?, "--out"]
            .into_iter()
            .map(Into::into)
            .chain([out.clone().into_os_string(), "--mover".into(), self.mover.to_string().into()])
            .collect::<Vec<_>>();
        let job = Job { pes: 2, completion: CompletionMode::Adaptive, bind: false, ..Job::default() };
        let this = std::env::current_exe().context("finding this program")?;
        let (status, why) = job.run(&this.into_os_string(), &arguments)?;
        let points = std::fs::read(&out);
        let _ = std::fs::remove_file(&out);
        // What they said themselves stands above.
        let why = || format!("the bench's processes failed: {}", why.unwrap_or_default());
        match status {
            0 => {}
            2 => return Err(Error::invalid("ntb bench", why()).into()),
            3 => return Err(NotReady(why()).into()),
            _ => bail!(why()),
        }
        Ok(serde_json::from_slice(&points.context("the bench's points")?)?)
    }
}

impl Bench {
    fn document(&self, points: &[Point]) -> Document<TransferResult> {
        let (hop, reason) = match self.ivshmem {
            None => {
                ("twin window (coherent shared memory)", "the default back-end; no bridge is in this machine")
            }
            Some(_) => ("ivshmem window (a BAR under vfio-pci)", "asked for by --ivshmem"),
        };
        let path = Path {
            name: String::new(),
            hops: vec!["pe 0".into(), hop.into(), "pe 1".into()],
            reason: reason.into(),
            not_taken: vec![NotTaken { path: "a hardware NTB".into(), why: "not supported yet".into() }],
        };
        let mut document = Document::new("ntb bench", path);
        document.twin = true;
        document.verification = Some(Verification {
            method: "the receiver compares every byte of each case's last transfer".into(),
            checked: points.iter().map(|point| point.verified_bytes).sum(),
            ..Verification::default()
        });
        document.notes = findings(points);
        document.notes.push(
        "shares of the ceiling are of a plain copy between the same memories; source and destination are the same each time"
            .into(),
    );
        if points.iter().any(|point| point.operation == Operation::PeerPut) {
            document.notes.push(
                "the peer is ucx_perftest -t ucp_put_bw with UCX_TLS=shm,self,tcp on the same two processors"
                    .into(),
            );
        }
        document.results = results(points);
        document
    }
}

fn plot(points: &[Point]) -> Plot {
    let mut lines = Vec::new();
    for (operation, name) in
        [(Operation::PutByMover, "by mover"), (Operation::PutDelivered, "stores, delivered")]
    {
        for (completion, points) in figure(points, operation) {
            let points =
                points.into_iter().map(|(x, y)| inlane_report::Point { x, y, spread: None }).collect();
            lines.push(Line { points, ..Line::new(completion, name) });
        }
    }
    Plot {
        title: "Bandwidth against transfer size by completion (twin)".into(),
        x: "bytes".into(),
        y: "GB/s".into(),
        x_scale: Scale::Log,
        y_scale: Scale::Linear,
        lines,
    }
}
