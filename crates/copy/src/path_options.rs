//! The options for opening paths ([`PathOptions`]), and the rule that chooses the path of a transfer
//! ([`PathChoice`]).

use crate::path::Path;
use crate::tuning::{EngineTuning, SmTuning};
use inlane_core::CompletionMode;
use inlane_core::mover::Access;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How paths are opened.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// The largest transfer, in bytes. Bounds the host buffers of the hybrid path.
    pub largest: usize,
    /// The width of the CPU's loads and stores. `None` selects the width by the kind of memory.
    pub access: Option<Access>,
    /// Determines when a CPU store to a BAR completes. If true, it completes when it is delivered, which a
    /// read from the BAR shows. If false, it completes when it is issued.
    pub delivered: bool,
    /// How the CPU waits for the stages of paths `staged` and `hybrid`. On these paths the CPU hands the
    /// chunks from stage to stage. A later
    /// [`Mover::set_completion_mode`](inlane_core::mover::Mover::set_completion_mode) overrides this mode.
    pub stages: CompletionMode,
    /// Tuning of staging by copy engines. `None` selects the tuning for one direction, or for both directions
    /// if `both_ways` is set.
    pub engines: Option<EngineTuning>,
    /// Tuning of staging by SMs.
    pub sms: SmTuning,
    /// If true, the kernels of staging by SMs keep running between transfers. This gives the least latency,
    /// but they occupy SMs meanwhile. If false, each transfer launches the kernels.
    pub resident: bool,
    /// The most blocks that a copy by SMs uses.
    pub blocks: u32,
    /// True if transfers in the opposite direction run at the same time. The choice of a path then uses its
    /// cost with both directions at once. Otherwise it uses the cost with one direction alone.
    pub both_ways: bool,
    /// Paths that [`PathChoice::Auto`] must not take.
    pub without: Vec<Path>,
    /// A flag that the caller may set to end calibration and transfers by the CPU early, with an error.
    pub stop: Arc<AtomicBool>,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            largest: 256 << 20,
            access: None,
            delivered: false,
            stages: CompletionMode::Poll,
            engines: None,
            sms: SmTuning::default(),
            resident: false,
            blocks: 16,
            both_ways: false,
            without: Vec::new(),
            stop: Arc::default(),
        }
    }
}

/// How a transfer's path is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The path with the least calibrated time for the transfer's size.
    #[default]
    Auto,
    /// This path if it can be opened, otherwise the cheapest other path. The result then says why this path
    /// was not used.
    Prefer(Path),
    /// Only this path. If it cannot be opened, opening fails.
    Require(Path),
}
