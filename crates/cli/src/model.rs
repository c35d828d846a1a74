//! `inlane model`: computes what flows that share resources reach, and what limits each of them.

use crate::output::Output;
use inlane_core::names::{did_you_mean, similar};
use inlane_core::units;
use inlane_model::published::{Published, Status};
use inlane_model::result::{
    ChainResult, FlowLimit, FlowResult, ModelResult, Note, ResourceResult, ResourceUnit,
};
use inlane_model::test_beds::TEST_BEDS;
use inlane_model::{Case, Model};
use inlane_ports::pcap::same_file;
use inlane_report::{Lines, grid};
use inlane_result::Document;
use std::io::{self, Write};

const EXAMPLES: &str = "\
Examples:
  inlane model system.toml                             the rate and the limit of each flow
  inlane model system.toml --set link.gen=5 --set dma.window=64K
                                                       what if the link were Gen5
  inlane model testbed:smartnic --case 'both through the DRAM, at its peak'
                                                       one case of a published system
  inlane model --published                             published results beside the model's values
  inlane model testbed:npu --print > npu.toml          a file to start from

Columns:
  limit     the full resource, the flow's own rate (demand) or its bytes in flight (window)
  margin    what the flow would gain without this limit, and what would limit it next
  residual  model / published - 1

docs/model.md describes the format of the file.

Exit status: 0 done; 1 the run failed; 2 wrong usage or settings; 3 a device, file,
program, right or peer is missing or in use ('inlane doctor' checks devices and rights).";

/// The prefix of a test bed's name in place of a file.
const TEST_BED: &str = "testbed:";
/// The most flows for which margins are computed. Each distinct limit takes the time of a solution.
const MOST_MARGINS: usize = 1000;

/// Computes the rates of flows that share resources, and what limits each of them
///
/// A TOML file describes links, memory, cores and engines with their capacities, and flows with their use of
/// these. Several test beds of publications are built in.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelArgs {
    /// The model: a TOML file, or testbed:NAME for a published system: inline-gpu, offload, npu, smartnic, ntb
    #[arg(value_name = "FILE", required_unless_present = "published")]
    file: Option<String>,
    /// Replace a value of the file: KEY=VALUE, for example link.gen=5. Repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Solve only the case with this name. Repeatable
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Print each published result beside the model's value, of the file or of all test beds
    #[arg(long)]
    published: bool,
    /// Print the file itself, to start a model from a test bed
    #[arg(long, conflicts_with_all = ["published", "set", "case", "json"])]
    print: bool,
    /// Write the result as JSON to a file, or to standard output for -
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

impl ModelArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the file cannot be read, is no model, or the result cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let files: Vec<String> = match &self.file {
            Some(file) => vec![file.clone()],
            None => TEST_BEDS.iter().map(|(name, _)| format!("{TEST_BED}{name}")).collect(),
        };
        if self.print {
            let text = read_model(&files[0])?;
            return crate::print(|out| out.write_all(text.as_bytes()));
        }
        if let (Some(file), Some(json)) = (&self.file, &self.json)
            && json != "-"
            && same_file(json.as_ref(), file.as_ref())
        {
            let why = "it is the model itself; name another file for the result";
            return Err(inlane_core::Error::invalid(format!("--json {json}"), why).into());
        }
        let output = Output::open(self.json.as_deref(), None, None)?;
        let mut document: Document<ModelResult> = Document::new("model");
        let (mut titles, mut notes) = (Vec::new(), Vec::new());
        if self.published && !self.set.is_empty() {
            notes.push(Note::ValuesReplaced);
        }
        for file in &files {
            let text = read_model(file)?;
            let model = Model::parse(file, &text).map_err(|error| explained(error, file, &text))?;
            titles.push(model.title().to_string());
            let published = model.published()?;
            let cases = model.cases(&self.set)?;
            let chosen = self.chosen(&cases, file)?;
            document.results.extend(chosen.into_iter().map(|case| row(file, case, &published, &mut notes)));
        }
        document.notes = notes.iter().map(ToString::to_string).collect();
        output.write(
            &mut document,
            |out, document| match self.published {
                true => show_published(out, &files, &titles, document),
                false => show_cases(out, document),
            },
            |_| None,
        )
    }

    /// Returns the cases to show: those that `--case` names, or all. With `--published`, only cases with a
    /// published result.
    fn chosen<'a>(&self, cases: &'a [Case], file: &str) -> anyhow::Result<Vec<&'a Case>> {
        for name in &self.case {
            if !cases.iter().any(|case| case.name == *name) {
                let names = || cases.iter().map(|case| case.name.as_str()).filter(|name| !name.is_empty());
                let near = did_you_mean(&similar(name, names()));
                let have = match names().collect::<Vec<_>>() {
                    names if names.is_empty() => "the file has no cases".into(),
                    names => format!("the cases are: {}", names.join("; ")),
                };
                let why = format!("{file} has no such case; {near}{have}");
                return Err(inlane_core::Error::invalid(format!("--case '{name}'"), why).into());
            }
        }
        let chosen: Vec<&Case> = (cases.iter())
            .filter(|case| self.case.is_empty() || self.case.contains(&case.name))
            .filter(|case| !self.published || case.published.is_some())
            .collect();
        if self.published && chosen.is_empty() {
            let why = "no case of it names a published result; leave out --published";
            return Err(inlane_core::Error::invalid(file, why).into());
        }
        Ok(chosen)
    }
}

/// Returns the text of a test bed or of a file.
fn read_model(file: &str) -> anyhow::Result<String> {
    let Some(name) = file.strip_prefix(TEST_BED) else {
        return crate::text_file::read(file, "model", "a TOML file that you may read, or testbed:NAME");
    };
    let names = || TEST_BEDS.iter().map(|(name, _)| *name);
    let found = TEST_BEDS.iter().find(|(bed, _)| *bed == name);
    found.map(|(_, text)| text.to_string()).ok_or_else(|| {
        let near = did_you_mean(&similar(name, names()));
        let names: Vec<_> = names().collect();
        inlane_core::Error::invalid(file, format!("{near}choose one of {}", names.join(", "))).into()
    })
}

/// Returns the error with the line and an explanation if the text is not TOML.
fn explained(error: inlane_model::Error, file: &str, text: &str) -> anyhow::Error {
    match error {
        inlane_model::Error::Toml { source, .. } => {
            let (line, why) = crate::settings::explain(&source, text);
            inlane_core::Error::invalid(format!("model {file}:{line}"), why).into()
        }
        other => other.into(),
    }
}

fn row(file: &str, case: &Case, published: &[(String, Published)], notes: &mut Vec<Note>) -> ModelResult {
    let few = case.flows.len() <= MOST_MARGINS;
    if !few {
        notes.push(Note::NoMargins { flows: case.flows.len(), most: MOST_MARGINS });
    }
    if !case.solution.settled {
        notes.push(Note::Unsettled);
    }
    let margins = few.then(|| case.margins());
    let published = published.iter().find(|(name, _)| Some(name) == case.published.as_ref());
    ModelResult::new(file, case, margins.as_deref(), published.map(|(_, published)| published))
}

fn show_cases(out: &mut dyn Write, document: &Document<ModelResult>) -> io::Result<()> {
    for (index, row) in document.results.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        if !row.case.is_empty() {
            writeln!(out, "{}:", row.case)?;
        }
        if !row.flows.is_empty() {
            let header = ["flow", "rate", "packets", "limit", "margin", "next limit"];
            write!(out, "{}", grid(&header, &row.flows.iter().map(flow_cells).collect::<Vec<_>>()))?;
        }
        let used: Vec<&ResourceResult> =
            row.resources.iter().filter(|it| it.used_units_per_second > 0.0).collect();
        if !used.is_empty() {
            writeln!(out)?;
            let header = ["resource", "used", "capacity", "share", "delay"];
            write!(out, "{}", grid(&header, &used.iter().map(|it| resource_cells(it)).collect::<Vec<_>>()))?;
        }
        for chain in &row.chains {
            write!(out, "{}", chain_lines(chain).render())?;
        }
        let mut lines = Lines::default();
        for assumption in &row.assumptions {
            lines.line("assumed", assumption);
        }
        write!(out, "{}", lines.render())?;
    }
    show_notes(out, document)
}

fn show_notes(out: &mut dyn Write, document: &Document<ModelResult>) -> io::Result<()> {
    document.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn flow_cells(flow: &FlowResult) -> Vec<String> {
    let limit = |limit: &FlowLimit| match limit {
        FlowLimit::Resource { name } => name.clone(),
        FlowLimit::Demand => "demand".into(),
        FlowLimit::Window => "window".into(),
    };
    let margin = flow.margin.as_ref().map_or("-".into(), |margin| match margin.gain {
        Some(gain) => format!("{:+.1} %", gain * 100.0),
        None => "no other limit".into(),
    });
    let next = flow.margin.as_ref().and_then(|margin| margin.next.as_ref());
    vec![
        flow.name.clone(),
        rate(flow.bytes_per_second),
        flow.packets_per_second.map_or("-".into(), units::packets_per_second),
        limit(&flow.limit),
        margin,
        next.map_or("-".into(), limit),
    ]
}

/// Shows a rate in bytes and in bits per second, because memory and networks are given in different units.
fn rate(bytes_per_second: f64) -> String {
    format!(
        "{} ({})",
        units::bytes_per_second(bytes_per_second),
        units::bits_per_second(bytes_per_second * 8.0)
    )
}

fn resource_cells(resource: &ResourceResult) -> Vec<String> {
    let amount = |value: f64| match resource.unit {
        ResourceUnit::Bytes => units::bytes_per_second(value),
        ResourceUnit::Seconds => format!("{value:.3} s/s"),
    };
    let delay = if resource.delay_ns > 0.0 { units::nanoseconds(resource.delay_ns) } else { "-".into() };
    vec![
        resource.name.clone(),
        amount(resource.used_units_per_second),
        amount(resource.capacity_units_per_second),
        format!("{:.1} %", resource.used_share * 100.0),
        delay,
    ]
}

fn chain_lines(chain: &ChainResult) -> Lines {
    let mut lines = Lines::default();
    let rate = chain.bytes_per_second.map(|bytes| format!(", {}", rate(bytes))).unwrap_or_default();
    lines.line(&chain.name, format!("{}{rate}", units::nanoseconds(chain.time_ns)));
    for stage in &chain.stages {
        let share = stage.time_ns / chain.time_ns * 100.0;
        lines.line(
            &format!("  {}", stage.name),
            format!("{} ({share:.1} %)", units::nanoseconds(stage.time_ns)),
        );
    }
    lines
}

fn show_published(
    out: &mut dyn Write,
    files: &[String],
    titles: &[String],
    document: &Document<ModelResult>,
) -> io::Result<()> {
    for (index, (file, title)) in files.iter().zip(titles).enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{file}: {title}")?;
        let header = ["result", "published", "model", "residual", "status", "case", "assumed"];
        let of_file = document.results.iter().filter(|row| row.model == *file);
        write!(out, "{}", grid(&header, &of_file.filter_map(published_cells).collect::<Vec<_>>()))?;
    }
    show_notes(out, document)
}

fn published_cells(row: &ModelResult) -> Option<Vec<String>> {
    let result = row.published.as_ref()?;
    let value = |value: Option<f64>| match value {
        Some(value) if value < 100.0 => format!("{value:.2} {}", result.unit.symbol()),
        Some(value) => format!("{value:.0} {}", result.unit.symbol()),
        None => "-".into(),
    };
    Some(vec![
        result.what.clone(),
        value(result.published),
        value(result.model),
        result.residual.map_or("-".into(), |residual| format!("{:+.1} %", residual * 100.0)),
        result.status.map_or("-", Status::words).into(),
        row.case.clone(),
        row.assumptions.join("; "),
    ])
}

#[cfg(test)]
mod tests {
    use inlane_model::pcie::{Pcie, Transfer};
    use inlane_pci::link::LinkRate;

    /// The model has its own computation, because it depends on no device.
    #[test]
    fn links_have_the_payload_rates_of_topo() {
        for (generation, megatransfers_per_second) in
            [(1, 2500), (2, 5000), (3, 8000), (4, 16000), (5, 32000)]
        {
            for payload in [128, 256, 512] {
                let link = Pcie {
                    generation,
                    lanes: 8,
                    max_payload: payload,
                    max_read_request: 512,
                    completion: payload,
                };
                let modelled = link.wire_bytes_per_second() / link.wire_bytes(Transfer::Write, None).up;
                let shown = LinkRate { megatransfers_per_second, lanes: 8 }.payload_bytes_per_second(payload);
                assert!((modelled / shown - 1.0).abs() < 1e-9, "Gen{generation}: {modelled} and {shown}");
            }
        }
    }

    #[test]
    fn all_test_beds_are_named_in_the_help() {
        let mut command = <crate::Cli as clap::CommandFactory>::command();
        let help = command.find_subcommand_mut("model").unwrap().render_long_help().to_string();
        for (name, _) in super::TEST_BEDS {
            assert!(help.contains(name), "{name}");
        }
    }
}
