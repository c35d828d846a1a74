//! The trait [`Row`] of a row of results. It returns named values, and the report crate arranges them in tables and
//! lines.

use crate::Value;
use serde::Serialize;
use std::fmt::Display;

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The heading of the value's column, or the label of its line. Contains the unit of a value that does not show
    /// it.
    pub name: String,
    /// The value.
    pub value: Value,
}

impl Cell {
    /// Creates a cell. `None` as a value is [`Value::Absent`].
    pub fn new(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A row of a result document. Each kind of document has its own type of row.
pub trait Row: Serialize {
    /// Returns the parameters that distinguish this row from others, such as burst and method. They are the
    /// first columns of a table. If all rows agree on a parameter, it is shown once, below the table.
    fn parameters(&self) -> Vec<Cell>;

    /// Returns the measured values, which become columns of a table. All rows of a type must return the same
    /// names in the same order. The table omits a column if no row has its value.
    fn figures(&self) -> Vec<Cell>;

    /// Returns the measured values as lines of text. If a document has only this row, the lines replace its
    /// table. If the list is empty, the table is shown.
    fn lines(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// Returns what a reader must know besides the measured values, such as the ports. Shown below the
    /// result. Lines that several rows share are shown once.
    fn context(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// Returns further facts, such as the path and the ceiling. Shown only if the document has a single row.
    fn details(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// Returns why the run failed, or `None` if it succeeded.
    fn error(&self) -> Option<&dyn Display> {
        None
    }
}
