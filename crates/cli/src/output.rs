//! Where a command's result goes: a table to standard output, a document and a figure to files that are opened before the run.

use inlane_report::{Error, Target};
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// What was asked for, opened.
pub struct Output {
    json: Option<Target>,
    svg: Option<Target>,
    table: bool,
}

impl Output {
    /// Opens the files; a document may go to standard output instead, by `-`, in place of the table.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn open(json: Option<&str>, svg: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            json: json.map(Target::open).transpose()?,
            svg: svg.map(Target::file).transpose()?,
            table: json != Some("-"),
        })
    }

    /// Writes the result: the table first, which is there whatever becomes of the files.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn write<T: Serialize>(
        self,
        table: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        document: &T,
        figure: impl FnOnce() -> Option<String>,
    ) -> anyhow::Result<()> {
        if self.table {
            crate::print(table)?;
        }
        if let Some(json) = self.json {
            json.json(document)?;
        }
        if let Some(svg) = self.svg {
            match figure() {
                Some(figure) => svg.text(&figure)?,
                None => crate::say("inlane: nothing to draw"),
            }
        }
        Ok(())
    }
}
