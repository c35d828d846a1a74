//! Chains of stages, whose times add up.

use super::unknown;
use crate::error::{Problem, Result};
use crate::network::RANGE;
use crate::tree::{Reader, Value};
use std::collections::HashMap;

/// A stage of a chain, or a chain within a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The name in the file.
    pub name: String,
    /// Seconds.
    pub time: f64,
}

/// Stages that follow each other without overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// The name in the file.
    pub name: String,
    /// The stages in order.
    pub stages: Vec<Stage>,
    /// The sum of the stages' times, in seconds.
    pub time: f64,
    /// The bytes that one pass moves.
    pub bytes: Option<f64>,
}

impl Chain {
    /// Returns the bytes per second of passes that follow each other without overlap.
    pub fn rate(&self) -> Option<f64> {
        self.bytes.map(|bytes| bytes / self.time)
    }
}

/// The most levels of chains within chains.
const DEPTH: usize = 64;

/// Reads the tables of stages and chains.
pub(super) fn read(stages: Option<Reader<'_>>, chains: Option<Reader<'_>>) -> Result<Vec<Chain>> {
    let stages: HashMap<&str, Reader<'_>> = stages.iter().flat_map(Reader::entries).collect();
    for reader in stages.values() {
        stage_time(reader, Some(1.0))?;
        reader.finish()?;
    }
    let entries: Vec<(&str, Reader<'_>)> = chains.iter().flat_map(Reader::entries).collect();
    let by_name = entries.iter().enumerate().map(|(index, (name, _))| (*name, index)).collect();
    let mut builder = Builder { stages, entries: &entries, by_name, solved: vec![None; entries.len()] };
    for index in 0..entries.len() {
        builder.build(index, &mut Vec::new())?;
    }
    Ok(builder.solved.into_iter().flatten().collect())
}

struct Builder<'a> {
    stages: HashMap<&'a str, Reader<'a>>,
    entries: &'a [(&'a str, Reader<'a>)],
    by_name: HashMap<&'a str, usize>,
    solved: Vec<Option<Chain>>,
}

impl Builder<'_> {
    /// Adds up the chain with this index, and before it the chains that it contains. `within` lists the chains that
    /// contain it.
    fn build(&mut self, index: usize, within: &mut Vec<usize>) -> Result<f64> {
        if let Some(chain) = &self.solved[index] {
            return Ok(chain.time);
        }
        let (name, reader) = &self.entries[index];
        if within.contains(&index) || within.len() >= DEPTH {
            within.push(index);
            let path = within.iter().take(10).map(|index| self.entries[*index].0.into()).collect();
            return Err(reader.wrong(Problem::Cycle { path }));
        }
        within.push(index);
        let bytes = reader.value("bytes").map(|value| value.bytes()).transpose()?;
        reader.require("stages", "list them, for example stages = [\"send\", \"receive\"]")?;
        let mut stages = Vec::new();
        for element in reader.list("stages")? {
            let (stage, factor) = match element.node() {
                Value::Table(_) => {
                    let stage = element
                        .require("stage", "name one, for example { stage = \"send\", factor = 0.5 }")?;
                    let factor = element.value("factor").map_or(Ok(1.0), |value| value.number(0.0, 1e9))?;
                    element.finish()?;
                    (stage, factor)
                }
                _ => (element.clone(), 1.0),
            };
            let called = stage.text()?;
            let time = match (self.stages.get(called), self.by_name.get(called)) {
                (Some(found), _) => match stage_time(found, bytes)? {
                    Some(time) => time,
                    None => return Err(reader.wrong(Problem::NoSize { key: "bytes" })),
                },
                (None, Some(&chain)) => self.build(chain, within)?,
                (None, None) => {
                    let known = self.stages.keys().chain(self.by_name.keys()).copied();
                    return Err(stage.wrong(unknown("stage", called, known)));
                }
            };
            stages.push(Stage { name: called.into(), time: time * factor });
        }
        reader.finish()?;
        within.pop();
        let time: f64 = stages.iter().map(|stage| stage.time).sum();
        let (least, most) = (*RANGE.start(), *RANGE.end());
        if !(least..=most).contains(&time) {
            return Err(reader.wrong(Problem::Range { value: time, least, most }));
        }
        self.solved[index] = Some(Chain { name: (*name).into(), stages, time, bytes });
        Ok(time)
    }
}

/// Returns the seconds of a stage. `None` if the stage has a rate and there is no number of bytes.
fn stage_time(reader: &Reader<'_>, bytes: Option<f64>) -> Result<Option<f64>> {
    let time = reader.value("time").map(|value| value.seconds()).transpose()?;
    let rate = reader.value("rate").map(|value| value.rate()).transpose()?;
    match (time, rate) {
        (None, None) => {
            let example = "give a time or a rate, for example time = \"4us\"";
            Err(reader.wrong(Problem::Missing { key: "time", example }))
        }
        (time, None) => Ok(time),
        (time, Some(rate)) => Ok(bytes.map(|bytes| time.unwrap_or(0.0) + bytes / rate)),
    }
}
