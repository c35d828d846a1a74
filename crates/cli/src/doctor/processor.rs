//! The processor: frequency policy, isolated cores, clock source.

use super::Machine;
use super::check::{Check, Name};
use super::files::processors;
use std::collections::BTreeMap;

const CPUS: &str = "/sys/devices/system/cpu";

pub fn cpu_governor(machine: &Machine) -> Check {
    let matters =
        "a core that clocks down between bursts adds tens of microseconds and makes figures scatter";
    let mut governors = BTreeMap::<String, usize>::new();
    for entry in machine.files.list(CPUS) {
        if let Some(name) = machine.files.text(&format!("{CPUS}/{entry}/cpufreq/scaling_governor")) {
            *governors.entry(name).or_default() += 1;
        }
    }
    let check = |evidence: String| Check::ok(Name::CpuGovernor, matters, evidence);
    if governors.is_empty() {
        return check("the kernel does not control the frequency here: firmware or a hypervisor does".into());
    }
    let listed: Vec<String> =
        governors.iter().map(|(name, cores)| format!("{name} on {cores} cores")).collect();
    if governors.keys().all(|name| name == "performance") {
        check(listed.join(", "))
    } else {
        check(listed.join(", "))
            .degraded(format!("echo performance | sudo tee {CPUS}/cpu*/cpufreq/scaling_governor"))
    }
}

pub fn isolated_cores(machine: &Machine) -> Check {
    let matters =
        "on a core that the scheduler shares out, a polling thread loses milliseconds to other work";
    let isolated = processors(&machine.files.text(&format!("{CPUS}/isolated")).unwrap_or_default());
    let online = processors(&machine.files.text(&format!("{CPUS}/online")).unwrap_or_default());
    if !isolated.is_empty() {
        let evidence = format!("{} of {} cores are isolated", isolated.len(), online.len());
        return Check::ok(Name::IsolatedCores, matters, evidence);
    }
    let evidence = format!("none of {} cores", online.len());
    let check = Check::ok(Name::IsolatedCores, matters, evidence);
    match online.as_slice() {
        [.., last] if online.len() >= 4 => {
            let cores = format!("{}-{last}", online[online.len() / 2]);
            check.degraded(format!(
                "add 'isolcpus={cores} nohz_full={cores} rcu_nocbs={cores}' to GRUB_CMDLINE_LINUX in /etc/default/grub, then: \
                 sudo update-grub && sudo reboot"
            ))
        }
        _ => check.degraded("none: a machine with fewer than four cores has none to spare"),
    }
}

pub fn clock_source(machine: &Machine) -> Check {
    let matters = "every timestamp reads this clock: the processor's counter takes about 20 ns, others up to microseconds";
    let base = "/sys/devices/system/clocksource/clocksource0";
    let check = |evidence: String| Check::ok(Name::ClockSource, matters, evidence);
    let available = machine.files.text(&format!("{base}/available_clocksource")).unwrap_or_default();
    match machine.files.text(&format!("{base}/current_clocksource")).as_deref() {
        // aarch64 has one good counter, and no other.
        Some(source @ ("tsc" | "arch_sys_counter")) => check(source.into()),
        Some(source) if available.split_whitespace().any(|name| name == "tsc") => check(format!("{source}, though tsc is there"))
            .degraded(format!("echo tsc | sudo tee {base}/current_clocksource")),
        Some(source) => check(format!("{source}; the kernel does not trust the processor's counter (available: {available})"))
            .degraded("add 'tsc=reliable' to GRUB_CMDLINE_LINUX in /etc/default/grub if the hypervisor keeps it steady, then: \
                       sudo update-grub && sudo reboot"),
        None => check("unknown (no clocksource in /sys)".into()).degraded("sudo mount -t sysfs none /sys"),
    }
}
