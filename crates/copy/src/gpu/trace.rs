//! Measures the steps of a staged transfer by SMs, from timestamps that the kernels record.
//!
//! Set `INLANE_COPY_TRACE=1` and measure one transfer at a time. Each repeat writes one line of JSON to
//! standard error, with medians in microseconds. The clocks of two GPUs and the CPU are not comparable. A
//! GPU's times count from the moment at which its first channel saw the command. The CPU's times count from
//! the call of `submit`.

use super::command_ring::CHANNEL_BYTES;
use super::staging_words::Channel;
use inlane_core::Region;
use inlane_core::stats::Summary;
use std::mem::offset_of;
use std::time::Instant;

/// The names of a transfer's two sides, each with the byte offset of the side's timestamps in [`Channel`].
const SIDES: [(&str, usize); 2] =
    [("push", offset_of!(Channel, pushed)), ("pull", offset_of!(Channel, pulled))];
/// The steps of a transfer. The number of a step is the index of its timestamp in `Channel::pushed` or
/// `Channel::pulled`. Index 0 of these arrays holds the number of the command.
const STEPS: [(&str, usize); 4] = [("all_channels_know", 1), ("copied", 2), ("fenced", 3), ("over", 4)];

/// The times of the steps of each transfer since the last report.
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
    /// Records the start of a transfer.
    pub fn begin(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.began = Instant::now();
    }

    /// Records that the transfer's command was written at `at`.
    pub fn published(&mut self, sequence: u64, at: Instant) {
        self.sequence = sequence;
        let took = at.duration_since(self.began);
        self.note("cpu_published".into(), took.as_nanos() as f64);
    }

    /// Records that the CPU has detected the end of the transfer. `channels` is the memory with the words of
    /// all channels.
    pub fn ended(&mut self, channels: &Region) {
        self.note("cpu_ended".into(), self.began.elapsed().as_nanos() as f64);
        // The kernels record their last timestamps after they have signalled the end. So sleep before reading
        // them.
        std::thread::sleep(std::time::Duration::from_micros(20));
        for (side, at) in SIDES {
            let word = |channel: usize, index: usize| -> u64 {
                let offset = channel * CHANNEL_BYTES + at + index * 8;
                assert!(offset + 8 <= channels.len());
                // SAFETY: the word is aligned and inside the region. The GPUs store whole words.
                unsafe { channels.as_ptr().add(offset).cast::<u64>().read_volatile() }
            };
            let noted: Vec<usize> = (0..channels.len() / CHANNEL_BYTES)
                .filter(|channel| word(*channel, 0) == self.sequence)
                .collect();
            let Some(first) = noted.iter().map(|channel| word(*channel, 1)).min() else { continue };
            for (step, index) in STEPS {
                let last = noted.iter().map(|channel| word(*channel, index)).max().unwrap_or(0);
                if last >= first {
                    self.note(format!("{side}_{step}"), (last - first) as f64);
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

    /// Writes the median time of each step to standard error, and forgets all times.
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
