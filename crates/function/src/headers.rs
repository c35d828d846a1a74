//! The text of the C++ headers that packet functions include.

/// The name and the text of each header. A header follows the headers that it includes. `inlane_oran.h` is
/// for users of `oran-reorder`.
pub const HEADERS: [(&str, &str); 7] = [
    ("inlane_ring.h", include_str!("../include/inlane_ring.h")),
    ("inlane_block.h", include_str!("../include/inlane_block.h")),
    ("inlane_packet.h", include_str!("../include/inlane_packet.h")),
    ("inlane_layers.h", include_str!("../include/inlane_layers.h")),
    ("inlane_run.h", include_str!("../include/inlane_run.h")),
    ("inlane.h", include_str!("../include/inlane.h")),
    ("inlane_oran.h", include_str!("../include/inlane_oran.h")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_header_is_the_one_that_core_generates() {
        let (name, text) = HEADERS[0];
        assert_eq!(name, "inlane_ring.h");
        let generated = inlane_core::ring::layout::c_header();
        assert!(
            text == generated,
            "inlane_ring.h is outdated; write this to crates/function/include/inlane_ring.h:\n{generated}"
        );
    }
}
