//! The values of a TOML file with the lines they stand on, and settings that replace some of them.

use crate::error::{Error, Place, Problem, Result};
use inlane_core::names::similar;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The tables whose name may be left out in a setting: `link.gen` stands for `resource.link.gen`.
pub(crate) const TABLES: [&str; 4] = ["resource", "flow", "stage", "chain"];
/// The table of published results, which are not part of the model.
pub(crate) const PUBLISHED: &str = "published";

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub value: Value,
    line: usize,
    setting: Option<Rc<str>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Number(f64),
    List(Vec<Node>),
    /// The entries of a table, in the order of the file.
    Table(Vec<(String, Node)>),
    /// A date or a truth value, which the format does not use.
    Other,
}

/// A parsed file.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub file: Rc<str>,
    pub root: Node,
}

impl Tree {
    /// Parses the text of a file. `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let starts: Vec<usize> = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1))
            .collect();
        let line = |at: usize| starts.partition_point(|start| *start <= at);
        let table = DeTable::parse(text).map_err(|source| Error::Toml { file: file.into(), source })?;
        let value = table_value(table.get_ref(), &line);
        Ok(Self { file: file.into(), root: Node { value, line: 1, setting: None } })
    }

    /// Removes a table from the root and returns it.
    pub fn take(&mut self, key: &str) -> Option<Node> {
        let Value::Table(entries) = &mut self.root.value else { return None };
        let at = entries.iter().position(|(name, _)| name == key)?;
        Some(entries.remove(at).1)
    }

    /// Replaces or adds the value that `setting` names: `KEY=VALUE`. The value is TOML, or else a text.
    pub fn set(&mut self, setting: &str) -> Result<()> {
        let file = self.file.clone();
        let wrong = |problem: Problem| {
            let place = Place {
                file: file.to_string(),
                line: None,
                setting: Some(setting.into()),
                key: String::new(),
            };
            Error::File { place, problem: Box::new(problem) }
        };
        let (key, text) = setting.split_once('=').ok_or_else(|| wrong(Problem::NoValue))?;
        let words: Vec<&str> = key.trim().split('.').collect();
        let value = match DeValue::parse(text.trim()) {
            Ok(value) => plain_value(value.get_ref(), &|_| 0),
            Err(_) => Value::Text(text.trim().into()),
        };
        self.insert(&words, Node { value, line: 0, setting: Some(setting.into()) }).map_err(wrong)
    }

    /// Replaces or adds a value at a path of keys.
    pub fn insert(&mut self, words: &[&str], node: Node) -> Result<(), Problem> {
        if words[0] == PUBLISHED {
            return Err(Problem::Published);
        }
        let full: Vec<&str> = match TABLES.contains(&words[0]) {
            true => words.to_vec(),
            false => {
                let has =
                    |table: &&&str| self.root.child(table).and_then(|node| node.child(words[0])).is_some();
                let table = TABLES.iter().find(has).ok_or_else(|| self.unknown(words[0], &self.names()))?;
                [&[*table], words].concat()
            }
        };
        let (last, parents) = full.split_last().expect("a split text has at least one part");
        let mut at = &mut self.root;
        for (depth, word) in parents.iter().enumerate() {
            let known = at.keys();
            let exists = known.iter().any(|key| key == word);
            let Value::Table(entries) = &mut at.value else {
                return Err(Problem::Type { expected: "a table; leave out what follows its key" });
            };
            // A table within a resource or flow may be missing. The reader checks its name.
            if !exists && depth < 2 {
                return Err(unknown_name(word, &known));
            }
            if !exists {
                let table = Node { value: Value::Table(Vec::new()), ..node.clone() };
                entries.push((word.to_string(), table));
            }
            let entry = entries.iter_mut().find(|(key, _)| key == word);
            at = entry.map(|(_, node)| node).expect("the entry exists or was added");
        }
        let Value::Table(entries) = &mut at.value else {
            return Err(Problem::Type { expected: "a table; leave out what follows its key" });
        };
        if full.len() < 3 {
            return Err(Problem::Type {
                expected: "that of a key in a resource, flow, stage or chain, such as link.gen=5",
            });
        }
        match entries.iter_mut().find(|(key, _)| key == last) {
            Some((_, old)) => *old = node,
            None => entries.push((last.to_string(), node)),
        }
        Ok(())
    }

    /// Returns the names in the tables that a setting may leave out.
    fn names(&self) -> Vec<String> {
        TABLES.iter().filter_map(|table| self.root.child(table)).flat_map(Node::keys).collect()
    }

    fn unknown(&self, name: &str, known: &[String]) -> Problem {
        unknown_name(name, known)
    }

    /// Returns a reader of the root.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self.file.clone(), String::new(), &self.root)
    }
}

fn unknown_name(name: &str, known: &[String]) -> Problem {
    Problem::UnknownName {
        kind: "name",
        name: name.into(),
        nearest: similar(name, known.iter().map(String::as_str)),
        known: known.to_vec(),
    }
}

impl Node {
    pub fn child(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<String> {
        match &self.value {
            Value::Table(entries) => entries.iter().map(|(name, _)| name.clone()).collect(),
            _ => Vec::new(),
        }
    }
}

fn table_value(table: &DeTable<'_>, line: &impl Fn(usize) -> usize) -> Value {
    let node = |(key, value): (&Spanned<toml::de::DeString<'_>>, &Spanned<DeValue<'_>>)| {
        let node =
            Node { value: plain_value(value.get_ref(), line), line: line(key.span().start), setting: None };
        (key.get_ref().to_string(), node)
    };
    let mut entries: Vec<(String, Node)> = table.iter().map(node).collect();
    entries.sort_by_key(|(_, node)| node.line);
    Value::Table(entries)
}

fn plain_value(value: &DeValue<'_>, line: &impl Fn(usize) -> usize) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i128::from_str_radix(number.as_str(), number.radix());
            Value::Number(parsed.map_or(f64::NAN, |number| number as f64))
        }
        DeValue::Float(number) => Value::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Array(values) => Value::List(
            (values.iter())
                .map(|value| Node {
                    value: plain_value(value.get_ref(), line),
                    line: line(value.span().start),
                    setting: None,
                })
                .collect(),
        ),
        DeValue::Table(table) => table_value(table, line),
        DeValue::Boolean(_) | DeValue::Datetime(_) => Value::Other,
    }
}

/// A reader of a table's keys. `finish` refuses the keys that were not read.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    file: Rc<str>,
    key: String,
    node: &'a Node,
    /// The keys that were asked for. All other keys are unknown to the format.
    known: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Reader<'a> {
    pub fn new(file: Rc<str>, key: String, node: &'a Node) -> Self {
        Self { file, key, node, known: RefCell::default() }
    }

    /// Returns a reader of a table with fixed keys. `None` if the key is absent.
    pub fn table(&self, key: &'static str) -> Result<Option<Reader<'a>>> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let reader = self.below(key, node);
        match node.value {
            Value::Table(_) => Ok(Some(reader)),
            _ => Err(reader.wrong(Problem::Type { expected: "a table" })),
        }
    }

    /// Returns the entries of this table, whose keys are names.
    pub fn entries(&self) -> Vec<(&'a str, Reader<'a>)> {
        match &self.node.value {
            Value::Table(entries) => {
                entries.iter().map(|(name, node)| (name.as_str(), self.below(name, node))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the elements of a list. Empty if the key is absent.
    pub fn list(&self, key: &'static str) -> Result<Vec<Reader<'a>>> {
        let Some(node) = self.get(key) else { return Ok(Vec::new()) };
        match &node.value {
            Value::List(nodes) => Ok(nodes.iter().map(|node| self.below(key, node)).collect()),
            _ => {
                Err(self.below(key, node).wrong(Problem::Type { expected: "a list, such as [\"a\", \"b\"]" }))
            }
        }
    }

    /// Returns the texts of a list.
    pub fn texts(&self, key: &'static str) -> Result<Vec<&'a str>> {
        self.list(key)?.iter().map(Reader::text).collect()
    }

    /// Returns a reader of the value of a key, which may have any type.
    pub fn value(&self, key: &'static str) -> Option<Reader<'a>> {
        Some(self.below(key, self.get(key)?))
    }

    /// Returns a reader of the value of a key that must be given. `example` says what to give.
    pub fn require(&self, key: &'static str, example: &'static str) -> Result<Reader<'a>> {
        self.value(key).ok_or_else(|| self.wrong(Problem::Missing { key, example }))
    }

    fn below(&self, key: &str, node: &'a Node) -> Reader<'a> {
        let dot = if self.key.is_empty() { "" } else { "." };
        Reader::new(self.file.clone(), format!("{}{dot}{key}", self.key), node)
    }

    pub fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.known.borrow_mut().insert(key);
        self.node.child(key)
    }

    /// Returns the value of this reader.
    pub fn node(&self) -> &'a Value {
        &self.node.value
    }

    /// Returns the value of this reader with its place in the file.
    pub fn placed(&self) -> Node {
        self.node.clone()
    }

    /// Returns this value as text.
    pub fn text(&self) -> Result<&'a str> {
        match &self.node.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong(Problem::Type { expected: "a text in quotes" })),
        }
    }

    /// Returns this value as a number within a range.
    pub fn number(&self, least: f64, most: f64) -> Result<f64> {
        match self.node.value {
            Value::Number(value) if (least..=most).contains(&value) => Ok(value),
            Value::Number(value) => Err(self.wrong(Problem::Range { value, least, most })),
            _ => Err(self.wrong(Problem::Type { expected: "a number" })),
        }
    }

    /// Returns this value as a whole number within a range.
    pub fn whole(&self, least: u32, most: u32) -> Result<u32> {
        let value = self.number(f64::from(least), f64::from(most))?;
        if value.fract() == 0.0 {
            Ok(value as u32)
        } else {
            Err(self.wrong(Problem::Type { expected: "a whole number" }))
        }
    }

    /// Returns this value as one of the words in `choices`.
    pub fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Result<T> {
        let text = self.text()?;
        choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let choices = choices.iter().map(|(word, _)| *word).collect();
            self.wrong(Problem::Choice { value: text.into(), choices })
        })
    }

    /// Returns an error about this value.
    pub fn wrong(&self, problem: Problem) -> Error {
        let setting = self.node.setting.as_ref().map(ToString::to_string);
        let place =
            Place { file: self.file.to_string(), line: Some(self.node.line), setting, key: self.key.clone() };
        Error::File { place, problem: Box::new(problem) }
    }

    /// Refuses keys that were not asked for. Call it after all keys were read.
    pub fn finish(&self) -> Result<()> {
        let known = self.known.borrow();
        let Value::Table(entries) = &self.node.value else { return Ok(()) };
        match entries.iter().find(|(key, _)| !known.contains(key.as_str())) {
            None => Ok(()),
            Some((key, node)) => Err(self.below(key, node).wrong(Problem::UnknownKey {
                nearest: similar(key, known.iter().copied()),
                known: known.iter().map(ToString::to_string).collect(),
            })),
        }
    }
}
