//! The report of a lane whose pipeline has ended.

/// How [`LaneReport::pcie_bytes`] is computed.
pub const PCIE_MODEL: &str = "per item: 32 B of words read, 8 B written; per packet: its descriptor of 16 B, what is read of it in sectors of \
     32 B, what is written back; without PCIe packet headers, polling, and chunks around unaligned starts";

/// The report of a lane whose pipeline has ended.
#[derive(Clone, Debug)]
pub struct LaneReport {
    /// The memory that the burst ring's words lie in.
    pub flags: String,
    /// The memory that packets lie in, and the part of their bytes that crosses PCIe.
    pub memory: String,
    /// The numbers of blocks, threads and streams.
    pub shape: String,
    /// Bytes that crossed PCIe, both ways, by [`PCIE_MODEL`].
    pub pcie_bytes: u64,
    /// The packet function's state at the end.
    pub state: Vec<u8>,
}
