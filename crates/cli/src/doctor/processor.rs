//! Checks settings of the processor that change latency: the frequency governor, a quota, isolated cores and the
//! clock source.

use super::Machine;
use super::check::{Check, Name};
use super::files::processors;
use inlane_core::units;
use std::collections::BTreeMap;

const CPUS: &str = "/sys/devices/system/cpu";

pub fn cpu_governor(machine: &Machine) -> Check {
    let purpose = "a core that lowers its frequency between bursts adds latency and spread to all figures";
    let mut governors = BTreeMap::<String, usize>::new();
    for entry in machine.files.list(CPUS) {
        if let Some(name) = machine.files.text(&format!("{CPUS}/{entry}/cpufreq/scaling_governor")) {
            *governors.entry(name).or_default() += 1;
        }
    }
    let check = |evidence: String| Check::ok(Name::CpuGovernor, purpose, evidence);
    if governors.is_empty() {
        return check("the firmware or a hypervisor controls the frequency, not this kernel".into());
    }
    let listed: Vec<String> = governors
        .iter()
        .map(|(name, cores)| format!("{name} on {}", units::counted(*cores as u64, "core")))
        .collect();
    if governors.keys().all(|name| name == "performance") {
        check(listed.join(", "))
    } else {
        check(listed.join(", "))
            .degraded(format!("echo performance | sudo tee {CPUS}/cpu*/cpufreq/scaling_governor"))
    }
}

pub fn cpu_quota(machine: &Machine) -> Check {
    let purpose =
        "a quota stops all threads of a process until its next period, usually for tens of milliseconds";
    let online = processors(&machine.files.text(&format!("{CPUS}/online")).unwrap_or_default()).len();
    let check = |evidence: String| Check::ok(Name::CpuQuota, purpose, evidence);
    match machine.trials.quota.map(|quota| quota.cores) {
        None => check("no control group limits the processor time of this process".into()),
        Some(cores) if online > 0 && cores >= online as f64 => {
            check(format!("the control group may use {cores:.2} cores, and the machine has {online}"))
        }
        Some(cores) => check(format!("the control group may use {cores:.2} cores")).degraded(
            "raise cpu.max of the control group (cgroup v1: cpu.cfs_quota_us), or the CPU limit of the container or service",
        ),
    }
}

pub fn isolated_cores(machine: &Machine) -> Check {
    let purpose = "on a shared core, the scheduler takes a polling thread off the processor for milliseconds";
    let isolated = processors(&machine.files.text(&format!("{CPUS}/isolated")).unwrap_or_default());
    let online = processors(&machine.files.text(&format!("{CPUS}/online")).unwrap_or_default());
    if !isolated.is_empty() {
        let evidence = format!("{} of {} cores are isolated", isolated.len(), online.len());
        return Check::ok(Name::IsolatedCores, purpose, evidence);
    }
    let evidence = format!("none of {} cores is isolated", online.len());
    let check = Check::ok(Name::IsolatedCores, purpose, evidence);
    match online.as_slice() {
        [.., last] if online.len() >= 4 => {
            let cores = format!("{}-{last}", online[online.len() / 2]);
            check.degraded(format!(
                "add 'isolcpus={cores} nohz_full={cores} rcu_nocbs={cores}' to GRUB_CMDLINE_LINUX in /etc/default/grub, then: \
                 sudo update-grub && sudo reboot"
            ))
        }
        _ => check.degraded("no fix: a machine with fewer than four cores has no core to spare"),
    }
}

pub fn clock_source(machine: &Machine) -> Check {
    let purpose =
        "every timestamp reads this clock; a clock other than the processor's counter can take microseconds";
    let base = "/sys/devices/system/clocksource/clocksource0";
    let check = |evidence: String| Check::ok(Name::ClockSource, purpose, evidence);
    let available = machine.files.text(&format!("{base}/available_clocksource")).unwrap_or_default();
    match machine.files.text(&format!("{base}/current_clocksource")).as_deref() {
        // On aarch64, the fast clock source is arch_sys_counter. Like tsc, it counts as ok.
        Some(source @ ("tsc" | "arch_sys_counter")) => check(source.into()),
        Some(source) if available.split_whitespace().any(|name| name == "tsc") => check(format!("{source}, although tsc is available"))
            .degraded(format!("echo tsc | sudo tee {base}/current_clocksource")),
        Some(source) => check(format!("{source}; the kernel does not offer the processor's counter (available: {available})"))
            .degraded("if the hypervisor keeps the counter steady: add 'tsc=reliable' to GRUB_CMDLINE_LINUX in /etc/default/grub, then: \
                       sudo update-grub && sudo reboot"),
        None => check("unknown, because /sys has no clocksource".into()).degraded("sudo mount -t sysfs none /sys"),
    }
}
