//! `inlane ntb bench`: two processes measure the windows between them.

use anyhow::{Context, bail};
use clap::Args;
use inlane_core::completion::Completion;
use inlane_core::result::{Document, NotTaken, Path, TransferResult, Verification};
use inlane_core::units;
use inlane_ntb::bench::{Operation, Plan, Point, figure, findings, peer, results};
use inlane_ntb::launch::Job;
use inlane_report::{Line, Plot, Scale};
use std::path::PathBuf;
use std::time::Duration;

/// Measure windows: put, get, both ways, message rate, delivery by poll, interrupt and adaptive, doorbells
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
    #[arg(long, value_name = "N", default_value_t = 5)]
    repeats: u32,
    /// Measure this ucx_perftest's shared-memory put beside ours
    #[arg(long, value_name = "PROGRAM")]
    ucx: Option<PathBuf>,
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
}

impl BenchPe {
    /// Takes part; PE 0 writes the points.
    pub fn run(self) -> anyhow::Result<()> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan")?;
        let points = inlane_ntb::bench::pe(&plan)?;
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
        if self.from > self.to || self.to > 4 << 30 || self.repeats == 0 {
            return Err(inlane_core::Error::Invalid {
                what: format!("sizes from {} to {}, {} repeats", self.from, self.to, self.repeats),
                why: "give --from below --to, --to up to 4G, and at least one repeat".into(),
            }
            .into());
        }
        let sizes = self.sizes();
        let plan =
            Plan { sizes: sizes.clone(), batch_us: self.batch.as_micros() as u64, repeats: self.repeats };
        let mut points = self.measure(&plan)?;
        if let Some(program) = &self.ucx {
            for &size in &sizes {
                points.push(peer::ucx_put(program, size, self.batch, self.repeats)?);
            }
        }
        let document = document(&points);
        if self.json.as_deref() != Some("-") {
            crate::print(|out| write!(out, "{}", inlane_report::transfers(&document)))?;
        }
        if let Some(target) = &self.json {
            inlane_report::json(target, &document)?;
        }
        if let Some(file) = &self.svg {
            let svg = plot(&points).svg().context("nothing to draw: give sizes of 512 bytes and more")?;
            std::fs::write(file, svg).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }

    fn measure(&self, plan: &Plan) -> anyhow::Result<Vec<Point>> {
        let out = std::env::temp_dir().join(format!("inlane-ntb-bench-{}.json", std::process::id()));
        let arguments = ["ntb", "bench-pe", "--plan", &serde_json::to_string(plan)?, "--out"]
            .into_iter()
            .map(Into::into)
            .chain([out.clone().into_os_string()])
            .collect::<Vec<_>>();
        let job = Job { pes: 2, completion: Completion::Adaptive, bind: false, ..Job::default() };
        let this = std::env::current_exe().context("finding this program")?;
        let (status, why) = job.run(&this.into_os_string(), &arguments)?;
        let points = std::fs::read(&out);
        let _ = std::fs::remove_file(&out);
        if status != 0 {
            bail!("the bench's processes failed: {}", why.unwrap_or_default());
        }
        Ok(serde_json::from_slice(&points.context("the bench's points")?)?)
    }
}

fn document(points: &[Point]) -> Document<TransferResult> {
    let path = Path {
        hops: vec!["pe 0".into(), "twin window (coherent shared memory)".into(), "pe 1".into()],
        reason: "the default back-end; no bridge is in this machine".into(),
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

fn plot(points: &[Point]) -> Plot {
    let mut lines = Vec::new();
    for (operation, name) in
        [(Operation::PutByMover, "DMA twin"), (Operation::PutDelivered, "stores, delivered")]
    {
        for (completion, points) in figure(points, operation) {
            lines.push(Line { name: format!("{name}, {completion}"), points });
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
