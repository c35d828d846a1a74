//! Checks the memory: whether hugepages are reserved, free and mounted, and whether the kernel moves pages
//! between NUMA nodes.

use super::Machine;
use super::check::{Check, Name};
use inlane_core::units;

pub fn hugepages(machine: &Machine) -> Check {
    let purpose =
        "packet buffers on 4 KiB pages cost more address translations, in the processor and in the IOMMU";
    let base = "/sys/kernel/mm/hugepages";
    let mut sizes = Vec::new();
    for entry in machine.files.list(base) {
        let size = entry.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB"));
        let Some(kib) = size.and_then(|kib| kib.parse::<u64>().ok()) else { continue };
        let number = |name: &str| machine.files.number(&format!("{base}/{entry}/{name}")).unwrap_or(0);
        sizes.push((kib.saturating_mul(1024), number("nr_hugepages"), number("free_hugepages")));
    }
    sizes.sort_unstable();
    if sizes.is_empty() {
        return Check::ok(Name::Hugepages, purpose, "this kernel has no hugepages")
            .missing("use a kernel with CONFIG_HUGETLBFS=y; until then, inlane uses 4 KiB pages");
    }
    let smallest = sizes[0].0 / 1024;
    let reserve = format!("echo 512 | sudo tee {base}/hugepages-{smallest}kB/nr_hugepages");
    let describe = |(size, all, free): &(u64, u64, u64)| {
        format!("{all} of {} reserved, {free} of them free", units::bytes(*size))
    };
    let reserved: Vec<String> = sizes.iter().filter(|(_, all, _)| *all > 0).map(describe).collect();
    if reserved.is_empty() {
        let kinds: Vec<String> = sizes.iter().map(|(size, ..)| units::bytes(*size)).collect();
        let evidence = format!("none reserved (sizes: {})", kinds.join(", "));
        return Check::ok(Name::Hugepages, purpose, evidence).degraded(reserve);
    }
    let check = |evidence: String| Check::ok(Name::Hugepages, purpose, evidence);
    if sizes.iter().all(|(_, _, free)| *free == 0) {
        return check(format!("{}; other programs use all of them", reserved.join("; "))).degraded(reserve);
    }
    let mounts = machine.files.text("/proc/mounts").unwrap_or_default();
    let mut mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let place = fields.nth(1)?;
        (fields.next()? == "hugetlbfs").then_some(place)
    });
    match mounted.next_back() {
        Some(place) => check(format!("{}; mounted at {place}", reserved.join("; "))),
        None => check(format!("{}; not mounted", reserved.join("; ")))
            .degraded("sudo mkdir -p /dev/hugepages && sudo mount -t hugetlbfs none /dev/hugepages"),
    }
}

pub fn numa(machine: &Machine) -> Check {
    let purpose = "memory and devices of another node are reached through the slower link between processors";
    let base = "/sys/devices/system/node";
    let node = |name: &str| {
        let digits = name.strip_prefix("node")?;
        (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| name.to_string())
    };
    let nodes: Vec<String> = machine.files.list(base).iter().filter_map(|name| node(name)).collect();
    let check = |evidence: String| Check::ok(Name::Numa, purpose, evidence);
    if nodes.len() < 2 {
        return check("one node: all memory is local".into());
    }
    let cores = |node: &String| {
        let list = machine.files.text(&format!("{base}/{node}/cpulist")).unwrap_or_default();
        format!("{node}: cores {}", if list.is_empty() { "none" } else { &list })
    };
    let evidence = nodes.iter().map(cores).collect::<Vec<_>>().join("; ");
    if machine.files.number("/proc/sys/kernel/numa_balancing").unwrap_or(0) > 0 {
        return check(format!("{evidence}; the kernel moves pages between nodes (numa_balancing)"))
            .degraded("sudo sysctl kernel.numa_balancing=0");
    }
    check(evidence)
}
