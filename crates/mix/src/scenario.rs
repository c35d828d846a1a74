//! What a session runs: loads with their settings. One definition serves TOML files and the command line.
//!
//! ```toml
//! title = "Copies to a card beside work in memory"
//!
//! [parameters]               # open parameters, with defaults; {card} stands for the value
//! card = "twin:0"
//!
//! [[load]]
//! name = "dma"               # default: the kind
//! kind = "dma"
//! to = "{card}"
//! cores = [2]
//! rate = "20GB/s"
//! ```
//!
//! On the command line, the same load is `dma name=dma to=twin:0 cores=2 rate=20GB/s`.

mod file;

use crate::field::LOAD;
use crate::kinds::{KINDS, MOST_THREADS, Work, kind_names};
use crate::settings::{Settings, Wrong};
use inlane_core::names::{did_you_mean, similar};
use inlane_core::units::Rate;
use inlane_core::{Error, cores};
use std::collections::BTreeMap;
use std::fmt;

/// The most loads of a scenario.
const MOST_LOADS: usize = 16;

/// Loads as they are written, before their settings are parsed.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// The title of the file. Empty without a file.
    pub title: String,
    /// The open parameters and their values.
    pub parameters: BTreeMap<String, String>,
    loads: Vec<Written>,
}

/// A load as it is written.
#[derive(Clone, Debug)]
struct Written {
    place: Place,
    settings: Vec<Setting>,
}

/// A setting of a load, with the place that it comes from.
#[derive(Clone, Debug)]
struct Setting {
    key: String,
    value: String,
    place: Place,
}

/// Where a setting is written.
#[derive(Clone, Debug)]
enum Place {
    File { file: String, line: usize },
    Text(String),
    Set(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { file, line } => write!(f, "scenario {file}:{line}"),
            Place::Text(text) => write!(f, "{}", LOAD.with(format!("'{text}'"))),
            Place::Set(text) => write!(f, "{}", crate::field::SET.with(text)),
        }
    }
}

/// A load with checked settings.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The name in results, unique in the scenario.
    pub name: String,
    /// What it does.
    pub work: Work,
    /// The cores that its threads run on. Empty for any.
    pub cores: Vec<usize>,
    /// The number of threads, if it is given.
    pub threads: Option<usize>,
    /// The rate that it shall keep. `None` to run as fast as possible. A rate in bits counts bytes of the load.
    pub rate: Option<Rate>,
    /// All settings as they are written, by key.
    pub settings: BTreeMap<String, String>,
}

/// Loads that are opened together.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The title of the file. Empty without a file.
    pub title: String,
    /// The loads.
    pub loads: Vec<LoadSpec>,
    /// What the user should know before the loads run.
    pub warnings: Vec<String>,
}

impl Draft {
    /// Adds the loads of a TOML file. `name` is the file's name in messages.
    ///
    /// # Errors
    /// If the text is not TOML, or has keys that a scenario does not have.
    pub fn add_file(&mut self, name: &str, text: &str) -> Result<(), Error> {
        file::read(self, name, text)
    }

    /// Adds a load that is written as its kind and settings, such as `memory operation=read cores=2`.
    ///
    /// # Errors
    /// If a word has no `=`, or a key is given twice.
    pub fn add_load(&mut self, text: &str) -> Result<(), Error> {
        let place = Place::Text(text.into());
        let mut settings: Vec<Setting> = Vec::new();
        for (index, word) in text.split_whitespace().enumerate() {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, value),
                None if index == 0 => ("kind", word),
                None => {
                    let why = format!("'{word}' is not a setting; write KEY=VALUE, for example cores=2");
                    return Err(Error::invalid(place.to_string(), why));
                }
            };
            if settings.iter().any(|setting| setting.key == key) {
                return Err(Error::invalid(place.to_string(), format!("{key} is given twice; give it once")));
            }
            settings.push(Setting { key: key.into(), value: value.into(), place: place.clone() });
        }
        self.loads.push(Written { place, settings });
        Ok(())
    }

    /// Replaces an open parameter (`card`) or a setting of a load (`dma.cores`).
    ///
    /// # Errors
    /// If there is no such parameter or load.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let place = Place::Set(format!("{key}={value}"));
        if let Some(parameter) = self.parameters.get_mut(key) {
            *parameter = value.into();
            return Ok(());
        }
        let names = names(&self.loads);
        let parts = key.split_once('.');
        if let Some((name, key)) = parts
            && let Some(index) = names.iter().position(|other| other == name)
        {
            let setting = Setting { key: key.into(), value: value.into(), place };
            let settings = &mut self.loads[index].settings;
            settings.retain(|setting| setting.key != key);
            settings.push(setting);
            return Ok(());
        }
        let known = self.parameters.keys().cloned().chain(names.iter().map(|name| format!("{name}.KEY")));
        let known: Vec<String> = known.collect();
        let wanted = parts.map_or(key, |(name, _)| name);
        let near = similar(wanted, names.iter().chain(self.parameters.keys()).map(String::as_str));
        let why =
            format!("there is no such setting; {}give one of {}", did_you_mean(&near), known.join(", "));
        Err(Error::invalid(place.to_string(), why))
    }

    /// Parses and checks all settings. Loads without cores take turns on `cores`, if it is not empty.
    ///
    /// # Errors
    /// The first setting that is wrong, with the place where it is written.
    pub fn scenario(&self, cores: &[usize]) -> Result<Scenario, Error> {
        if self.loads.is_empty() {
            return Err(Error::invalid("the scenario", "it has no load; give at least one"));
        }
        if self.loads.len() > MOST_LOADS {
            let why = format!("it has {} loads; give at most {MOST_LOADS}", self.loads.len());
            return Err(Error::invalid("the scenario", why));
        }
        let names = names(&self.loads);
        let mut loads = Vec::new();
        for (index, (written, name)) in self.loads.iter().zip(&names).enumerate() {
            if names[..index].contains(name) {
                let why = format!("another load is named {name}; give each load a name of its own");
                return Err(Error::invalid(written.place.to_string(), why));
            }
            loads.push(self.load(written, name)?);
        }
        let mut turns = cores.iter().copied().cycle();
        for load in loads.iter_mut().filter(|load| load.cores.is_empty() && !cores.is_empty()) {
            load.cores = turns.by_ref().take(load.threads.unwrap_or(1).min(cores.len())).collect();
        }
        for load in &loads {
            if let Some((core, why)) = cores::refused(&load.cores) {
                return Err(Error::invalid(format!("load {}: core {core}", load.name), why));
            }
        }
        let warnings = warnings(&loads);
        Ok(Scenario { title: self.title.clone(), loads, warnings })
    }

    fn load(&self, written: &Written, name: &str) -> Result<LoadSpec, Error> {
        let mut settings = BTreeMap::new();
        let mut places = BTreeMap::new();
        for Setting { key, value, place } in &written.settings {
            settings.insert(key.clone(), self.filled_in(value, place)?);
            places.insert(key.clone(), place.clone());
        }
        let Some(kind_name) = settings.get("kind") else {
            let why = format!("it has no kind; give one of {}", kind_names().join(", "));
            return Err(Error::invalid(written.place.to_string(), why));
        };
        let Some(kind) = KINDS.iter().find(|kind| kind.name == kind_name) else {
            let near = did_you_mean(&similar(kind_name, kind_names()));
            let why = format!(
                "there is no kind of load '{kind_name}'; {near}the kinds are {}",
                kind_names().join(", ")
            );
            return Err(Error::invalid(places["kind"].to_string(), why));
        };
        for (key, place) in &places {
            if !kind.has(key) {
                let known: Vec<&str> = kind.keys().map(|key| key.name).collect();
                let near = did_you_mean(&similar(key, known.iter().copied()));
                let why = format!(
                    "a load of kind {} has no key '{key}'; {near}the keys are {}",
                    kind.name,
                    known.join(", ")
                );
                return Err(Error::invalid(place.to_string(), why));
            }
        }
        let reader = Settings(&settings);
        let read = || -> Result<LoadSpec, Wrong> {
            Ok(LoadSpec {
                name: name.into(),
                work: (kind.read)(&reader)?,
                cores: reader.cores("cores")?,
                threads: reader.count("threads", MOST_THREADS)?,
                rate: reader.rate("rate")?,
                settings: settings.clone(),
            })
        };
        read().map_err(|Wrong { key, why }| {
            let place =
                places.get(key).map_or_else(|| written.place.to_string(), |it| format!("{it}: {key}"));
            Error::invalid(place, why)
        })
    }

    /// Replaces `{NAME}` by the value of the parameter NAME.
    fn filled_in(&self, text: &str, place: &Place) -> Result<String, Error> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let wrong = |why: String| Error::invalid(place.to_string(), why);
            let (name, after) =
                after.split_once('}').ok_or_else(|| wrong(format!("'{text}' lacks a closing brace")))?;
            let value = self.parameters.get(name).ok_or_else(|| {
                let known: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
                let near = did_you_mean(&similar(name, known.iter().copied()));
                wrong(format!(
                    "there is no parameter '{name}'; {near}the parameters are {}",
                    known.join(", ")
                ))
            })?;
            if value.is_empty() {
                let set = crate::field::SET.with(format!("{name}=VALUE"));
                return Err(wrong(format!("the parameter {name} has no value; give {set}")));
            }
            filled += before;
            filled += value;
            rest = after;
        }
        Ok(filled + rest)
    }
}

/// Returns the names of the loads: those that are given, and the kinds of the others, numbered if they repeat.
fn names(loads: &[Written]) -> Vec<String> {
    let value = |load: &Written, key: &str| {
        load.settings.iter().find(|setting| setting.key == key).map(|setting| setting.value.clone())
    };
    let mut names: Vec<String> = Vec::new();
    for load in loads {
        let kind = value(load, "kind").unwrap_or_else(|| "load".into());
        let name = value(load, "name").unwrap_or_else(|| {
            let numbered = (2..).map(|number| format!("{kind}{number}"));
            let free = |name: &String| !names.contains(name);
            std::iter::once(kind.clone()).chain(numbered).find(free).expect("the numbers do not end")
        });
        names.push(name);
    }
    names
}

fn warnings(loads: &[LoadSpec]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, load) in loads.iter().enumerate() {
        for other in &loads[..index] {
            let shared: Vec<String> =
                load.cores.iter().filter(|core| other.cores.contains(core)).map(usize::to_string).collect();
            if !shared.is_empty() {
                let what = if shared.len() == 1 { "core" } else { "cores" };
                warnings.push(format!("{} and {} share {what} {}", other.name, load.name, shared.join(",")));
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests;
