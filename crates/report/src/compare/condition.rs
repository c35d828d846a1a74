//! The conditions under which results were measured. Results of different conditions are not comparable.

use super::Side;
use crate::figures::Measured;
use inlane_core::units;
use inlane_result::{Document, Host};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// The largest difference of memory between two boots of one machine, as a fraction.
const SAME_MEMORY: f64 = 0.01;

/// A condition of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// The processor, the number of cores, the memory, the devices, and whether a twin took part.
    Machine,
    /// The ports or endpoints.
    Ports,
    /// Whether the build is optimised.
    Build,
    /// The kernel's release. A difference is shown, and the results stay comparable.
    Kernel,
    /// A parameter on which all rows of a side agree. A difference is shown, and the results stay comparable.
    Parameters,
}

impl Condition {
    /// Returns true if a difference makes results incomparable, unless `across` contains the condition.
    pub fn is_severe(self, across: &[Condition]) -> bool {
        !matches!(self, Condition::Kernel | Condition::Parameters) && !across.contains(&self)
    }
}

/// A condition that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Difference {
    /// The condition.
    pub condition: Condition,
    /// What differs, such as `processor`.
    pub what: String,
    /// The value of the first side.
    pub before: String,
    /// The value of the other side.
    pub after: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |value: &str| if value.is_empty() { "none".to_string() } else { value.to_string() };
        write!(f, "{}: {} / {}", self.what, named(&self.before), named(&self.after))
    }
}

/// Returns how the conditions of two sides differ. Each document is compared with the first of the first side.
pub(super) fn differences(first: &Side, second: &Side) -> Vec<Difference> {
    let mut found = Vec::new();
    let Some(one) = first.documents.first() else { return found };
    for other in first.documents[1..].iter().chain(&second.documents) {
        for difference in of_documents(one, other) {
            if !found.contains(&difference) {
                found.push(difference);
            }
        }
    }
    found
}

fn of_documents(one: &Document<Value>, other: &Document<Value>) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut compare = |condition, what: &str, before: String, after: String| {
        if before != after {
            found.push(Difference { condition, what: what.into(), before, after });
        }
    };
    let (a, b): (&Host, &Host) = (&one.host, &other.host);
    compare(Condition::Machine, "processor", a.cpu.clone(), b.cpu.clone());
    compare(Condition::Machine, "cores", a.cores.to_string(), b.cores.to_string());
    let memory = [a.memory_bytes, b.memory_bytes];
    if memory[0].abs_diff(memory[1]) as f64 > SAME_MEMORY * memory[0] as f64 {
        compare(Condition::Machine, "memory", units::bytes(memory[0]), units::bytes(memory[1]));
    }
    compare(Condition::Machine, "devices", one.devices.join(", "), other.devices.join(", "));
    let measured = |twin| if twin { "of a model" } else { "measured" }.to_string();
    compare(Condition::Machine, "figures", measured(one.twin), measured(other.twin));
    let build = |optimised| if optimised { "optimised" } else { "without optimisation" }.to_string();
    let builds = [one, other].map(|document| build(document.command.build.optimised));
    let [before, after] = builds;
    compare(Condition::Build, "build", before, after);
    compare(Condition::Kernel, "kernel", a.kernel.clone(), b.kernel.clone());
    found
}

/// Returns how the ends and the parameters of two rows differ.
pub(super) fn of_rows(before: &Measured<'_>, after: &Measured<'_>) -> Vec<Difference> {
    let mut found = Vec::new();
    let ports = [before, after].map(|row| row.ends.join(" -> "));
    if ports[0] != ports[1] {
        let [before, after] = ports;
        found.push(Difference { condition: Condition::Ports, what: "ports".into(), before, after });
    }
    let value = |row: &Measured<'_>, name: &str| {
        let cell = row.identity.iter().find(|cell| cell.name == name);
        cell.map(|cell| cell.value.to_string()).unwrap_or_default()
    };
    let mut names: Vec<&str> = Vec::new();
    for cell in before.identity.iter().chain(&after.identity) {
        if !names.contains(&cell.name.as_str()) {
            names.push(&cell.name);
        }
    }
    for name in names {
        let (before, after) = (value(before, name), value(after, name));
        if before != after {
            found.push(Difference { condition: Condition::Parameters, what: name.into(), before, after });
        }
    }
    found
}
