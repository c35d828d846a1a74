//! The services that a transport needs. [`Exchange`] exchanges addresses and keys between PEs. [`JobControl`]
//! is a PE's connection to its launcher. The window transport needs only [`JobControl`], because it exchanges
//! addresses through scratchpads.

use crate::error::Result;

/// An event of a PE, as the process that supervises the job sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeEvent {
    /// The PE has joined the job.
    Attached,
    /// The PE has finished. It needs the other PEs no more.
    Finished,
    /// The PE ends because it lost the PE with this number, which is the cause of the failure.
    Lost(u32),
    /// The PE asks to end all PEs, and the launcher to exit with this status.
    ExitAll(i32),
    /// The PE's connection closed, because its process exited or was killed.
    Gone,
}

/// The exchange of addresses and keys between the PEs of a job.
pub trait Exchange: Send + Sync {
    /// Returns the number of this PE.
    fn me(&self) -> u32;
    /// Returns the number of PEs.
    fn pes(&self) -> u32;
    /// Exchanges data with all PEs. Blocks until every PE has called this method as often as this PE. Returns
    /// the `bytes` of each PE, in the order of the PEs.
    ///
    /// # Errors
    /// If a PE or the launcher has ended.
    fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// Returns a PE that ended without a call of [`JobControl::report_finished`]. Returns `None` if there is
    /// no such PE.
    fn lost(&self) -> Option<u32>;
}

/// A PE's connection to its launcher. The PE uses it to report how it ends.
pub trait JobControl: Send + Sync {
    /// Reports to the launcher that this PE has finished. Without this report, the launcher treats the end of
    /// this process as a failure.
    fn report_finished(&self);
    /// Reports that this PE ends because `peer` was lost. The launcher then looks for the cause at `peer`.
    fn report_lost(&self, peer: u32);
    /// Asks the launcher to end all PEs, and to exit with `status`.
    fn request_exit_all(&self, status: i32);
    /// Blocks until the launcher asks this PE to end. Returns the exit status that the launcher requests, or
    /// `None` if the launcher has ended. Call it from one thread only.
    fn wait_for_end(&self) -> Option<i32>;
}
