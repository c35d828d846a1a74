//! `inlane copy --list`: the paths between two endpoints.

use super::Copy;
use crate::output::Output;
use inlane_copy::cost::Cache;
use inlane_copy::result::ListedPath;
use inlane_copy::{Endpoint, PathOptions, list_paths};
use inlane_result::Document;

impl Copy {
    /// Prints the paths between two endpoints, and why each is available or not.
    ///
    /// # Errors
    /// If an endpoint cannot be opened, or the output cannot be written.
    pub(super) fn list_paths(
        &self,
        from: &Endpoint,
        to: &Endpoint,
        options: &PathOptions,
    ) -> anyhow::Result<()> {
        let output = Output::open(self.json.as_deref(), self.csv.as_deref(), None)?;
        let devices = inlane_copy::measure::open(&[from.clone(), to.clone()], &self.permission())?;
        let (from, to) = (&devices[0], &devices[1]);
        let mut document = Document::<ListedPath>::new("copy");
        document.devices = devices.iter().map(|device| device.describe()).collect();
        document.devices.dedup();
        document.twin = devices.iter().any(|device| device.endpoint().is_twin());
        let cache = Cache::load();
        let costs = cache.get(from, to, options);
        if costs.is_none() {
            document
                .notes
                .push("no calibration of this pair is kept; a run with --path auto makes one".into());
        }
        document.results = list_paths(from, to, options, costs);
        output.write(
            &mut document,
            |out, document| out.write_all(inlane_report::text(document).as_bytes()),
            |_| None,
        )
    }
}
