//! What a run takes from the machine's resources, as far as its configuration tells.

use super::load::ForwardLoad;
use inlane_core::load::Use;

/// Returns the uses of a load.
pub(super) fn uses(_load: &ForwardLoad) -> Vec<Use> {
    Vec::new()
}
