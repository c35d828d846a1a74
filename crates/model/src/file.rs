//! Model files: resources, flows, stages, chains and cases in TOML. `docs/model.md` describes the format.

mod chains;
mod flows;
mod resources;

pub use chains::{Chain, Stage};

use crate::error::{Error, Problem, Result};
use crate::network::Network;
use crate::published::{Published, PublishedUnit, Status};
use crate::solve::{Margin, Solution};
use crate::tree::{Node, PUBLISHED, Reader, Tree, Value};
use inlane_core::names::similar;
use resources::Resources;
use std::collections::HashMap;

/// The keys of a file's root, apart from the published results.
const TITLE: &str = "title";

/// A parsed model file.
#[derive(Clone, Debug)]
pub struct Model {
    tree: Tree,
    /// The published results. They are kept separate because no case may read them.
    published: Option<Node>,
}

/// The unit of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes; on links, all bytes on the wire.
    Bytes,
    /// Seconds of cores or engines.
    Seconds,
}

/// The name of a resource, and what it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceInfo {
    /// The name in the file. A direction of a link has the link's name and the direction: `link.up`.
    pub name: String,
    /// The unit of the capacity.
    pub unit: Unit,
    /// Units per second.
    pub capacity: f64,
}

/// The name of a flow, and its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowInfo {
    /// The name in the file.
    pub name: String,
    /// The bytes of a packet.
    pub packet: Option<f64>,
}

/// What a case predicts.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantity {
    /// The sum of the rates of the first flows. If the second list is not empty, that sum divided by the sum of the
    /// rates of the second flows. The lists contain indices of flows.
    Rates(Vec<usize>, Vec<usize>),
    /// The chain with this index.
    Chain(usize),
}

/// A case: some flows with some values, solved.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name of the case. Empty if the file has no cases.
    pub name: String,
    /// The resources. Their order is that of the solution.
    pub resources: Vec<ResourceInfo>,
    /// The flows. Their order is that of the solution.
    pub flows: Vec<FlowInfo>,
    /// The network.
    pub network: Network,
    /// The rates.
    pub solution: Solution,
    /// The chains of stages.
    pub chains: Vec<Chain>,
    /// What the case predicts.
    pub quantity: Option<Quantity>,
    /// The name of the published result that the case is about.
    pub published: Option<String>,
    /// What the prediction is worth.
    pub status: Option<Status>,
    /// The assumptions for which there is no source.
    pub assumes: Vec<String>,
}

impl Case {
    /// Returns the value that the case predicts, in a unit. `None` if it predicts another kind of quantity.
    pub fn value(&self, unit: PublishedUnit) -> Option<f64> {
        let sum = |flows: &[usize]| flows.iter().map(|flow| self.solution.flows[*flow].rate).sum::<f64>();
        let (rate, time, share) = match self.quantity.as_ref()? {
            Quantity::Rates(of, over) if over.is_empty() => (Some(sum(of)), None, None),
            Quantity::Rates(of, over) => (None, None, Some(sum(of) / sum(over))),
            Quantity::Chain(chain) => (self.chains[*chain].rate(), Some(self.chains[*chain].time), None),
        };
        match unit {
            PublishedUnit::Gigabits => rate.map(|rate| rate * 8.0 / 1e9),
            PublishedUnit::Megabits => rate.map(|rate| rate * 8.0 / 1e6),
            PublishedUnit::Mebibytes => rate.map(|rate| rate / 1048576.0),
            PublishedUnit::Microseconds => time.map(|time| time * 1e6),
            PublishedUnit::Percent => share.map(|share| share * 100.0),
        }
    }

    /// Returns the margin of each flow.
    pub fn margins(&self) -> Vec<Margin> {
        self.network.margins(&self.solution)
    }
}

impl Model {
    /// Parses the text of a file. `name` is the file's name in messages.
    ///
    /// # Errors
    /// [`Error::Toml`] if the text is not TOML. Other mistakes are found by [`Model::cases`].
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut tree = Tree::parse(name, text)?;
        let published = tree.take(PUBLISHED);
        Ok(Self { tree, published })
    }

    /// Returns the title of the file. Empty if it has none.
    pub fn title(&self) -> &str {
        match self.tree.root.child(TITLE).map(|node| &node.value) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Solves the cases of the file. `settings` replace values of the file and of its cases, such as
    /// `link.gen=5`. A file without cases is one case with all flows.
    ///
    /// # Errors
    /// [`Error::File`] for the first value that cannot be used, with its line and key.
    pub fn cases(&self, settings: &[String]) -> Result<Vec<Case>> {
        let mut with_settings = self.tree.clone();
        settings.iter().try_for_each(|setting| with_settings.set(setting))?;
        let root = with_settings.reader();
        let list = root.list("case")?;
        if list.is_empty() {
            return Ok(vec![solve(&with_settings, None)?]);
        }
        let of_case = |case: &Reader<'_>| {
            let mut tree = self.tree.clone();
            if let Some(set) = case.table("set")? {
                for (key, value) in set.entries() {
                    let words: Vec<&str> = key.split('.').collect();
                    tree.insert(&words, value.placed()).map_err(|problem| value.wrong(problem))?;
                }
            }
            settings.iter().try_for_each(|setting| tree.set(setting))?;
            solve(&tree, Some(case))
        };
        list.iter().map(of_case).collect()
    }

    /// Returns the published results of the file by their names.
    ///
    /// # Errors
    /// [`Error::File`] for the first value that cannot be used.
    pub fn published(&self) -> Result<Vec<(String, Published)>> {
        let Some(node) = &self.published else { return Ok(Vec::new()) };
        let reader = Reader::new(self.tree.file.clone(), PUBLISHED.into(), node);
        let entries = reader.entries().into_iter();
        entries.map(|(name, entry)| Ok((name.to_string(), Published::read(&entry)?))).collect()
    }
}

/// Solves one case of a tree.
fn solve(tree: &Tree, case: Option<&Reader<'_>>) -> Result<Case> {
    let root = tree.reader();
    for key in [TITLE, "source"] {
        root.value(key).map_or(Ok(""), |value| value.text())?;
    }
    root.get("case");
    let mut network = Network::new();
    let resources = Resources::read(root.table("resource")?, &mut network)?;
    let chains = chains::read(root.table("stage")?, root.table("chain")?)?;
    let only = case.map_or(Ok(Vec::new()), |case| case.texts("flows"))?;
    let listed = case.is_some_and(|case| case.get("flows").is_some());
    let flows = flows::read(root.table("flow")?, listed.then_some(&only[..]), &resources, &mut network)?;
    root.finish()?;
    let names: HashMap<&str, usize> =
        flows.iter().enumerate().map(|(index, (info, _))| (info.name.as_str(), index)).collect();
    let index_of = |kind: &'static str, reader: &Reader<'_>, names: &HashMap<&str, usize>| {
        let name = reader.text()?;
        names.get(name).copied().ok_or_else(|| reader.wrong(unknown(kind, name, names.keys().copied())))
    };
    let solution = network.solve().map_err(|error| match error {
        Error::Unlimited { flow } => flows[flow.0].1.wrong(Problem::Unlimited),
        Error::NoWindow { flow, resource } => {
            let resource = resources.infos[resource.0].name.clone();
            flows[flow.0].1.wrong(Problem::NoWindow { resource })
        }
        other => other,
    })?;
    let mut solved = Case {
        name: String::new(),
        flows: flows.iter().map(|(info, _)| info.clone()).collect(),
        resources: resources.infos.clone(),
        network,
        solution,
        chains,
        quantity: None,
        published: None,
        status: None,
        assumes: Vec::new(),
    };
    let Some(case) = case else { return Ok(solved) };
    let text = |key| case.value(key).map(|value| value.text().map(String::from)).transpose();
    case.get("set");
    for flow in case.list("flows")? {
        index_of("flow", &flow, &names)?;
    }
    solved.name = text("name")?.unwrap_or_default();
    solved.published = text("published")?;
    solved.assumes = case.texts("assumes")?.into_iter().map(String::from).collect();
    solved.status = case.value("status").map(|value| value.choice(&Status::CHOICES)).transpose()?;
    let chain_names: HashMap<&str, usize> =
        solved.chains.iter().enumerate().map(|(index, chain)| (chain.name.as_str(), index)).collect();
    let of_flows = |key| {
        let list = case.list(key)?;
        list.iter().map(|flow| index_of("flow", flow, &names)).collect::<Result<Vec<_>>>()
    };
    let (of, over) = (of_flows("of")?, of_flows("over")?);
    let quantity = match case.value("chain") {
        Some(chain) if of.is_empty() => Some(Quantity::Chain(index_of("chain", &chain, &chain_names)?)),
        Some(chain) => return Err(chain.wrong(Problem::Both { first: "chain", second: "of" })),
        None => (!of.is_empty()).then_some(Quantity::Rates(of, over)),
    };
    drop(chain_names);
    solved.quantity = quantity;
    case.finish()?;
    Ok(solved)
}

/// Returns the problem of a reference to an unknown name.
fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> Problem {
    let mut known: Vec<String> = known.map(String::from).collect();
    known.sort();
    let nearest = similar(name, known.iter().map(String::as_str));
    Problem::UnknownName { kind, name: name.into(), nearest, known }
}

#[cfg(test)]
mod tests;
