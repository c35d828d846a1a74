//! The NUMA nodes of the machine, with their CPUs and memory.

use crate::sysfs::{Sysfs, read_text};
use schemars::JsonSchema;
use serde::Serialize;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Node {
    /// The number of the node.
    pub node: u32,
    /// The node's CPUs in the kernel's notation, such as `0-15,32-47`. Empty for a node without CPUs.
    pub cpus: String,
    /// The size of the node's memory in bytes, or null if the system does not report it.
    pub memory_bytes: Option<u64>,
}

/// Returns all nodes in order. Empty if the kernel does not support NUMA.
pub fn nodes(sysfs: &Sysfs) -> Vec<Node> {
    let home = sysfs.system_nodes();
    let mut numbers: Vec<u32> = std::fs::read_dir(&home)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let node = |node: u32| {
        let text = |file: &str| read_text(&home.join(format!("node{node}/{file}")));
        Node {
            node,
            cpus: text("cpulist").unwrap_or_default(),
            memory_bytes: text("meminfo").and_then(|text| total(&text)),
        }
    };
    numbers.into_iter().map(node).collect()
}

/// Parses the total from a line such as `Node 0 MemTotal:       24690500 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(3)?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_sysfs::FakeSysfs;
    use std::fs;

    #[test]
    fn nodes_are_listed_in_order() {
        let fake = FakeSysfs::new();
        for (node, cpus) in [(10, ""), (2, "0-3\n")] {
            let home = fake.path(&format!("devices/system/node/node{node}"));
            fs::create_dir_all(&home).unwrap();
            fs::write(home.join("cpulist"), cpus).unwrap();
            fs::write(home.join("meminfo"), "\nNode 2 MemTotal:   1024 kB\nNode 2 MemFree: 7 kB\n").unwrap();
        }
        let nodes = nodes(&fake.sysfs());
        assert_eq!(
            nodes.iter().map(|n| (n.node, n.cpus.as_str())).collect::<Vec<_>>(),
            [(2, "0-3"), (10, "")]
        );
        assert_eq!(nodes[0].memory_bytes, Some(1 << 20));
        assert_eq!(total("MemTotal: x y z w"), None);
    }
}
