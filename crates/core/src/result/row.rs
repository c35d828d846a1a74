//! What a row of results shows to people: plain names and texts, which the report crate arranges.

use serde::Serialize;

/// A named value, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The column's heading or the line's name, with the unit if the text has none.
    pub name: String,
    /// The value. Empty if the row has none.
    pub text: String,
}

impl Cell {
    /// A cell with a name and a text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// A cell whose text is empty if there is no value.
    pub fn optional(name: impl Into<String>, text: Option<impl Into<String>>) -> Self {
        Self { name: name.into(), text: text.map(Into::into).unwrap_or_default() }
    }
}

/// A row of a result document. Each system implements it for its own type of row.
pub trait Row: Serialize {
    /// What distinguishes this row from its neighbours: burst, method, size and the like. Shown in the table's first columns,
    /// or once above the context if all rows agree.
    fn parameters(&self) -> Vec<Cell>;

    /// The measured values for a table. All rows of a kind return the same names in the same order; a column without any
    /// text is left out.
    fn figures(&self) -> Vec<Cell>;

    /// The measured values as lines of text, for a document that has this row alone. If empty, a table is shown.
    fn lines(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// What to know about this row beside its measured values, such as the ports. Shown below the result. Lines that several
    /// rows share are shown once.
    fn context(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// More of the context, for a document that has this row alone: the path, the ceiling and the like.
    fn details(&self) -> Vec<Cell> {
        Vec::new()
    }

    /// Why the run failed.
    fn error(&self) -> Option<&str>;
}
