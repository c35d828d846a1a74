//! What solo runs show: the use of each resource by each load, and the capacity of the resources.
//!
//! A load alone does not show what it takes from a resource that is not full. An antagonist fills the resource: see
//! [`inlane_model::fit`].

mod crossing;
mod fitted;

pub use crossing::{Crossing, crossings};
pub(crate) use fitted::SLOWED;
pub use fitted::{Fitted, Known, Step};

use crate::observation::{Loaded, Measured, Observation, Phase};
use crate::statistics;

/// The observations of a session in which one load of the user runs, alone or beside an antagonist. It cannot contain
/// observations of mixes, so whatever follows from it was known before the mixes ran.
#[derive(Clone, Debug, PartialEq)]
pub struct SoloRuns {
    loads: Vec<Loaded>,
    users: usize,
    observations: Vec<Observation>,
}

impl SoloRuns {
    /// Takes the observations of solo runs from `measured`. Leaves out void ones.
    pub fn of(measured: &Measured) -> Self {
        let solo = |observation: &&Observation| {
            matches!(observation.phase, Phase::Alone { .. } | Phase::Beside { .. })
                && observation.void.is_none()
        };
        Self {
            loads: measured.loads.clone(),
            users: measured.users,
            observations: measured.observations.iter().filter(solo).cloned().collect(),
        }
    }

    /// Returns the loads of the user, and then the antagonists.
    pub fn loads(&self) -> &[Loaded] {
        &self.loads
    }

    /// Returns the number of the user's loads.
    pub fn users(&self) -> usize {
        self.users
    }

    /// Returns the median rate of a load alone. `None` if it was not measured or did not move.
    pub fn alone(&self, load: usize) -> Option<f64> {
        let rate = statistics::rate(&self.observations, Phase::Alone { load }, load)?.median;
        (rate > 0.0).then_some(rate)
    }

    /// Fits uses and capacities.
    pub fn fit(&self) -> Fitted {
        fitted::fit(self)
    }

    /// Returns the same runs with the blocks in `blocks`, each as often as it occurs there. Intervals follow from such
    /// random selections.
    pub(crate) fn with_blocks(&self, blocks: &[usize]) -> Self {
        let of_block = |(new, old): (usize, &usize)| {
            let old = *old;
            let of_block = self.observations.iter().filter(move |observation| observation.block == old);
            of_block.map(move |observation| Observation { block: new, ..observation.clone() })
        };
        let observations = blocks.iter().enumerate().flat_map(of_block).collect();
        Self { loads: self.loads.clone(), users: self.users, observations }
    }

    /// Returns the number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.observations.iter().map(|observation| observation.block + 1).max().unwrap_or(0)
    }

    pub(crate) fn observations(&self) -> &[Observation] {
        &self.observations
    }
}
