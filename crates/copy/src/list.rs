//! Lists the paths between two endpoints, and why each is available or not.

use crate::cost::PathCosts;
use crate::device::Device;
use crate::open_path::open_path;
use crate::path::Path;
use crate::path_options::PathOptions;
use crate::result::ListedPath;
use inlane_result::Reason;

/// Checks which paths between two devices can be opened, without transferring bytes. Opens and closes each
/// path. Returns one row per path, available paths first. Rows have calibrated times if `costs` is given.
pub fn list_paths(
    from: &Device,
    to: &Device,
    options: &PathOptions,
    costs: Option<&PathCosts>,
) -> Vec<ListedPath> {
    let candidates = Path::candidates(from.endpoint(), to.endpoint());
    // Open `p2p` last, because it enables peer access until the process ends. Path `cuda` cannot be opened
    // after that.
    let mut paths = Path::ALL;
    paths.sort_by_key(|path| *path == Path::P2p);
    let mut rows: Vec<ListedPath> = paths
        .into_iter()
        .map(|path| {
            let opened = match candidates.contains(&path) {
                true => open_path(path, from, to, options)
                    .map(|mover| mover.hops())
                    .map_err(|error| Reason::unavailable(error.to_string())),
                false => Err(Reason::unavailable(path.why_not(from.endpoint(), to.endpoint()))),
            };
            ListedPath {
                from: from.endpoint().clone(),
                to: to.endpoint().clone(),
                path,
                available: opened.is_ok(),
                hops: opened.clone().unwrap_or_default(),
                calibrated_1_mib_ns: costs.and_then(|costs| costs.time(path, 1 << 20)),
                why_not: opened.err(),
            }
        })
        .collect();
    rows.sort_by_key(|row| (!row.available, Path::ALL.iter().position(|path| *path == row.path)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_listed_with_its_movers_or_a_reason() {
        let ends = ["twin:0", "twin:1"].map(|end| end.parse().unwrap());
        let devices = crate::open(&ends, &Default::default()).unwrap();
        let rows = list_paths(&devices[0], &devices[1], &PathOptions::default(), None);
        assert_eq!(rows.len(), Path::ALL.len());
        let available: Vec<Path> = rows.iter().take_while(|row| row.available).map(|row| row.path).collect();
        assert_eq!(available, [Path::Cpu, Path::Hybrid, Path::Staged]);
        for row in &rows {
            assert_eq!(row.available, row.why_not.is_none(), "{row:?}");
            assert_eq!(row.available, !row.hops.is_empty(), "{row:?}");
        }
    }
}
