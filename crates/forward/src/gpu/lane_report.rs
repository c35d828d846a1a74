//! The report of a lane at the end of its pipeline.

use crate::result::LaunchShape;
use inlane_function::FunctionReport;

/// The text in results that says how [`LaneReport::pcie_bytes`] is computed.
pub const PCIE_MODEL: &str = "per item: 32 B of words read, 8 B written; per packet: its descriptor of 16 B, what is read of it in sectors of \
     32 B, what is written back; without PCIe packet headers, polling, and chunks around unaligned starts";

/// The report of a lane, made when its pipeline has ended.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// The memory that holds the burst ring's words, as text for the result. A word tells whether its item
    /// was submitted or completed.
    pub flags: String,
    /// Text for the result: the memory of the packets, and the part of each packet that crosses PCIe.
    pub memory: String,
    /// The number of blocks, threads and streams of the lane's kernels.
    pub shape: LaunchShape,
    /// The number of bytes that crossed PCIe, for both directions together. It is not measured but computed
    /// by the formula in [`PCIE_MODEL`].
    pub pcie_bytes: u64,
    /// The packet function's report, from its state at the end of the run.
    pub function: FunctionReport,
}

impl LaneReport {
    /// Adds the report of another pipeline's lane. All lanes of a run have the same shape and memory.
    pub(crate) fn add(&mut self, other: Self) {
        // Every field is named, so a new one cannot be forgotten here.
        let Self { flags: _, memory: _, shape: _, pcie_bytes, function } = other;
        self.pcie_bytes += pcie_bytes;
        self.function.merge(function);
    }
}
