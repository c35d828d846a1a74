//! Where the microseconds of a transfer by SMs go: what the kernels noted of the time, where they were compiled to.
//!
//! Set `INLANE_COPY_TRACE=1`, and measure one transfer at a time: a line of JSON goes to standard error for each repeat, with
//! medians in microseconds. Clocks of two GPUs and the CPU are not compared: each GPU's times count from its first lane that
//! saw the command, the CPU's from the call.

use inlane_core::Region;
use inlane_core::stats::Summary;
use std::time::Instant;

/// Words of a lane, as `staging.cu` has them: two sides, six words each.
const SIDES: [(&str, usize); 2] = [("push", 16), ("pull", 144)];
const LANE_BYTES: usize = 256;
/// Which word tells what.
const NOTED: [(&str, usize); 4] = [("all_lanes_know", 1), ("copied", 2), ("fenced", 3), ("over", 4)];

/// Times of transfers since the last report.
pub struct Trace {
    bytes: usize,
    began: Instant,
    sequence: u64,
    times: Vec<(String, Vec<f64>)>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { bytes: 0, began: Instant::now(), sequence: 0, times: Vec::new() }
    }
}

impl Trace {
    /// A transfer begins.
    pub fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.began = Instant::now();
    }

    /// Its command was written for every lane.
    pub fn published(&mut self, sequence: u64, at: Instant) {
        self.sequence = sequence;
        let took = at.duration_since(self.began);
        self.note("cpu_published".into(), took.as_nanos() as f64);
    }

    /// Its end was seen; `lanes` are the words of all lanes.
    pub fn ended(&mut self, lanes: &Region) {
        self.note("cpu_ended".into(), self.began.elapsed().as_nanos() as f64);
        // What the kernels note after the end comes a little later.
        std::thread::sleep(std::time::Duration::from_micros(20));
        for (side, at) in SIDES {
            let word = |lane: usize, index: usize| -> u64 {
                // SAFETY: inside the lanes' words, aligned; the GPUs write whole words.
                unsafe {
                    lanes.as_ptr().add(lane * LANE_BYTES + at + index * 8).cast::<u64>().read_volatile()
                }
            };
            let noted: Vec<usize> =
                (0..lanes.len() / LANE_BYTES).filter(|lane| word(*lane, 0) == self.sequence).collect();
            let Some(first) = noted.iter().map(|lane| word(*lane, 1)).min() else { continue };
            for (what, index) in NOTED {
                let last = noted.iter().map(|lane| word(*lane, index)).max().unwrap_or(0);
                if last >= first {
                    self.note(format!("{side}_{what}"), (last - first) as f64);
                }
            }
        }
    }

    fn note(&mut self, what: String, nanoseconds: f64) {
        match self.times.iter_mut().find(|(name, _)| *name == what) {
            Some((_, times)) => times.push(nanoseconds),
            None => self.times.push((what, vec![nanoseconds])),
        }
    }

    /// Writes medians, and begins anew.
    pub fn report(&mut self) {
        let fields: Vec<String> = std::mem::take(&mut self.times)
            .iter()
            .filter_map(|(name, times)| {
                Some(format!("\"{name}_us\": {:.2}", Summary::of(times)?.median / 1e3))
            })
            .collect();
        if !fields.is_empty() {
            eprintln!("{{\"bytes\": {}, {}}}", self.bytes, fields.join(", "));
        }
    }
}
