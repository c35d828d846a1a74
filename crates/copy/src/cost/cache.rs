//! Keeps measured costs in a file, for later runs and other processes.
//!
//! ```text
//!  machine, source, destination, options  ->  costs, time of the measurement
//! ```
//!
//! The part before the arrow is the key. It does not contain values that change between runs, such as the
//! current rate of an idle GPU's link.

use super::PathCosts;
use crate::device::Device;
use crate::path_options::PathOptions;
use inlane_core::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most entries in the file. The oldest measurements are removed first.
const MOST: usize = 256;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// The time of the measurement, in seconds since 1970.
    measured_s: u64,
    costs: PathCosts,
}

type Entries = BTreeMap<String, Entry>;

/// Costs by pair of devices and path options, kept in a file.
#[derive(Debug)]
pub struct Cache {
    file: Option<PathBuf>,
    entries: Entries,
}

impl Cache {
    /// Reads the user's cache, `inlane/copy-costs.json` in `$XDG_CACHE_HOME` or `~/.cache`. The result is
    /// empty if the file is missing, unreadable or malformed.
    pub fn load() -> Self {
        let root = std::env::var_os("XDG_CACHE_HOME")
            .filter(|folder| !folder.is_empty())
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        match root {
            Some(root) => Self::at(root.join("inlane").join("copy-costs.json")),
            None => Self { file: None, entries: Entries::new() },
        }
    }

    /// Reads the cache in `file`. The result is empty if the file is missing, unreadable or malformed.
    pub fn at(file: impl Into<PathBuf>) -> Self {
        let file = file.into();
        Self { entries: read(&file), file: Some(file) }
    }

    /// Returns the stored costs of the paths between two devices with these options. `None` if there are
    /// none.
    pub fn get(&self, from: &Device, to: &Device, options: &PathOptions) -> Option<&PathCosts> {
        self.entries.get(&key(from, to, options)).map(|entry| &entry.costs)
    }

    /// Returns the stored costs. If there are none, or other processes disturbed their calibration, calibrates first.
    ///
    /// # Errors
    /// As for [`PathCosts::calibrate`].
    pub fn get_or_calibrate(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        options: &PathOptions,
    ) -> Result<PathCosts> {
        match self.get(from, to, options).cloned() {
            Some(costs) if !costs.disturbed => Ok(costs),
            stored => self.calibrate(from, to, options, stored.as_ref()),
        }
    }

    /// Calibrates the paths between two devices, and stores the costs. `disturbed` are the costs of an earlier
    /// calibration that other processes disturbed.
    ///
    /// # Errors
    /// As for [`PathCosts::calibrate`].
    pub fn calibrate(
        &mut self,
        from: &Arc<Device>,
        to: &Arc<Device>,
        options: &PathOptions,
        disturbed: Option<&PathCosts>,
    ) -> Result<PathCosts> {
        let mut costs = PathCosts::calibrate(from, to, options)?;
        if let Some(disturbed) = disturbed {
            costs = costs.improved_by(disturbed);
        }
        self.put(from, to, options, costs.clone());
        Ok(costs)
    }

    /// Stores costs in memory and in the file. Keeps the entries that other processes added to the file
    /// meanwhile. If the file cannot be written, logs a warning.
    pub fn put(&mut self, from: &Device, to: &Device, options: &PathOptions, costs: PathCosts) {
        let measured_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let entry = Entry { measured_s, costs };
        let key = key(from, to, options);
        self.entries.insert(key.clone(), entry.clone());
        let Some(file) = &self.file else { return };
        if let Err(error) = write(file, key, entry) {
            let file = file.display();
            tracing::warn!(
                "the calibration is not kept: cannot write {file}: {error}; set XDG_CACHE_HOME to a directory that you may write"
            );
        }
    }
}

fn read(file: &Path) -> Entries {
    fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Adds an entry to the current content of the file. A concurrent reader sees either the old or the new file.
fn write(file: &Path, key: String, entry: Entry) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Lock the file against other processes from `read` to `rename`. Otherwise, another process could
    // overwrite this entry. Ignore a failure to lock, because an overwritten entry is only measured again
    // later.
    let lock = File::create(file.with_extension("lock"))?;
    let _ = lock.lock();
    let mut entries = read(file);
    entries.insert(key, entry);
    while entries.len() > MOST {
        let oldest = entries.iter().min_by_key(|(_, entry)| entry.measured_s).map(|(key, _)| key.clone());
        oldest.and_then(|key| entries.remove(&key));
    }
    let part = file.with_extension(format!("{}.part", std::process::id()));
    let replaced =
        fs::write(&part, serde_json::to_vec_pretty(&entries)?).and_then(|()| fs::rename(&part, file));
    replaced.inspect_err(|_| drop(fs::remove_file(&part)))
}

/// Returns the key of a cache entry. The key contains everything that changes the costs. It does not contain
/// `options.largest`, because calibration measures the same sizes for every value of it.
fn key(from: &Device, to: &Device, options: &PathOptions) -> String {
    let host = inlane_result::Host::this();
    let driver = crate::gpu::driver_version().map_or(String::new(), |version| format!(", CUDA {version}"));
    let PathOptions {
        largest: _,
        stop: _,
        access,
        delivered,
        stages,
        engines,
        sms,
        resident,
        blocks,
        both_ways,
        without,
    } = options;
    let mut without: Vec<String> = without.iter().map(ToString::to_string).collect();
    without.sort();
    without.dedup();
    let access = access.map_or("by memory".into(), |access| access.to_string());
    format!(
        "calibration 2, inlane {}, {} x {}, Linux {}{driver} | {} -> {} | {}access {access}{}, stages {stages}, {engines:?}, {sms:?}, \
         resident {resident}, blocks {blocks}, without {}",
        env!("CARGO_PKG_VERSION"),
        host.cores,
        host.cpu,
        host.kernel,
        from.stable_name(),
        to.stable_name(),
        if *both_ways { "both ways, " } else { "" },
        if *delivered { ", delivered" } else { "" },
        without.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::super::Curve;
    use super::*;
    use crate::path::Path;
    use inlane_core::CompletionMode;
    use inlane_core::mover::Access;
    use inlane_twin::{Accelerator, Costs};

    fn twins() -> [Arc<Device>; 2] {
        [0, 1].map(|index| Device::twin(Accelerator::new(index, Costs::published(index))))
    }

    fn costs(nanoseconds: f64) -> PathCosts {
        let curve = Curve { points: vec![(4096, nanoseconds)] };
        PathCosts { paths: [(Path::Cpu, curve)].into(), ..PathCosts::default() }
    }

    #[test]
    fn each_combination_has_its_own_entry_whatever_the_largest_size() {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = Cache::at(folder.path().join("new").join("costs.json"));
        let [a, b] = twins();
        let asked = PathOptions { largest: 4096, ..PathOptions::default() };
        cache.put(&a, &b, &asked, costs(1.0));
        assert_eq!(
            cache.get(&a, &b, &PathOptions { largest: 1 << 30, ..PathOptions::default() }),
            Some(&costs(1.0))
        );
        let others = [
            PathOptions { access: Some(Access::Bytes4), ..PathOptions::default() },
            PathOptions { delivered: true, ..PathOptions::default() },
            PathOptions { stages: CompletionMode::Interrupt, ..PathOptions::default() },
            PathOptions { resident: true, ..PathOptions::default() },
            PathOptions { blocks: 3, ..PathOptions::default() },
            PathOptions { both_ways: true, ..PathOptions::default() },
            PathOptions { without: vec![Path::Cpu], ..PathOptions::default() },
        ];
        for (index, options) in others.iter().enumerate() {
            assert_eq!(cache.get(&a, &b, options), None, "{options:?}");
            cache.put(&a, &b, options, costs(index as f64 + 2.0));
        }
        assert_eq!(cache.get(&b, &a, &asked), None, "the opposite direction has its own entry");
        let other = Device::twin(Accelerator::new(1, Costs { link: 1e9, ..Costs::published(1) }));
        assert_eq!(cache.get(&a, &other, &asked), None, "another device with the same number");
        // Store one more entry. A second cache that reads the same file must then find this entry and the
        // earlier ones.
        cache.put(&b, &a, &asked, costs(9.5));
        let again = Cache::at(folder.path().join("new").join("costs.json"));
        assert_eq!(again.get(&b, &a, &asked), Some(&costs(9.5)));
        assert_eq!(again.get(&a, &b, &asked), Some(&costs(1.0)));
        for (index, options) in others.iter().enumerate() {
            assert_eq!(again.get(&a, &b, options), Some(&costs(index as f64 + 2.0)));
        }
    }

    #[test]
    fn concurrent_writers_lose_nothing_and_readers_see_complete_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("costs.json");
        let [a, b] = twins();
        let options =
            |writer: u32, turn: u32| PathOptions { blocks: writer * 100 + turn, ..PathOptions::default() };
        fs::write(&file, "{ cut off").unwrap();
        std::thread::scope(|scope| {
            for writer in 1..5 {
                let (a, b, file) = (&a, &b, &file);
                scope.spawn(move || {
                    // Each thread has its own `Cache`, as a separate process would. The thread reads the file
                    // before the other threads write to it. So `put` must also keep entries of the file that
                    // this `Cache` does not have.
                    let mut cache = Cache::at(file);
                    for turn in 0..10 {
                        cache.put(a, b, &options(writer, turn), costs(f64::from(writer)));
                    }
                });
            }
            for _ in 0..200 {
                let text = fs::read(&file).unwrap();
                assert!(text == b"{ cut off" || serde_json::from_slice::<Entries>(&text).is_ok());
            }
        });
        let cache = Cache::at(&file);
        for writer in 1..5 {
            for turn in 0..10 {
                assert_eq!(cache.get(&a, &b, &options(writer, turn)), Some(&costs(f64::from(writer))));
            }
        }
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "more than the file and its lock: {left:?}");
    }

    #[test]
    fn the_oldest_entries_are_removed_from_a_full_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("costs.json");
        let entry = |measured_s| Entry { measured_s, costs: costs(1.0) };
        let full: Entries = (0..MOST as u64 + 10).map(|n| (format!("pair {n}"), entry(1000 - n))).collect();
        fs::write(&file, serde_json::to_vec(&full).unwrap()).unwrap();
        write(&file, "new".into(), entry(2000)).unwrap();
        let kept = read(&file);
        assert_eq!(kept.len(), MOST);
        assert!(kept.contains_key("new") && kept.contains_key("pair 0"));
        assert!(!kept.contains_key(&format!("pair {}", MOST + 9)), "the oldest entry is still there");
    }
}
