//! The settings of a job that only windows have: faults and the mover of large puts. The launcher passes them to its PEs in
//! environment variables.

use super::MoverChoice;
use crate::error::{Error, Result};
use crate::field::{FAULTS, FAULTY, MOVER, MOVER_FROM, TRANSPORT};
use crate::variables::of_launcher;
use inlane_core::mover::Mover;
use inlane_core::setting::Field;
use inlane_ntb::fault::Faults;
use std::process::Command;

const FAULTS_VARIABLE: &str = "INLANE_NTB_FAULTS";
const MOVER_VARIABLE: &str = "INLANE_NTB_MOVER";
const MOVER_FROM_VARIABLE: &str = "INLANE_NTB_MOVER_FROM";

/// The settings of a job that only windows have.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Faults to inject, in the syntax of [`Faults`]; empty for none.
    pub faults: String,
    /// The PE at which faults are injected; all PEs if `None`.
    pub faulty: Option<u32>,
    /// The mover that copies large puts. If `None`, the processor stores all puts.
    pub mover: Option<MoverChoice>,
    /// Size in bytes from which the mover copies. If `None`, each PE measures the size while connecting.
    pub mover_from: Option<u64>,
}

impl Options {
    /// Checks the options for a job of `pes` PEs.
    ///
    /// # Errors
    /// [`Error::Invalid`] for options that are invalid or do not fit together.
    pub fn check(&self, pes: u32) -> Result<()> {
        self.faults.parse::<Faults>()?;
        match (&self.mover, self.mover_from) {
            (Some(MoverChoice::Gpu(_)), _) => {
                drop(self.mover.as_ref().map(MoverChoice::start_twin).transpose()?)
            }
            (None, Some(_)) => {
                return Err(Error::invalid(
                    MOVER_FROM,
                    format!("no mover was chosen; add {}", MOVER.with("twin")),
                ));
            }
            _ => {}
        }
        match self.faulty {
            Some(_) if self.faults.is_empty() => {
                Err(Error::invalid(FAULTY, format!("there are no faults to inject; add {FAULTS}")))
            }
            Some(pe) if pe >= pes => {
                let why = format!("give a PE of the job, 0 to {}", pes.saturating_sub(1));
                Err(Error::invalid(FAULTY.with(pe), why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses options for a job over the transport `name`, which has no windows.
    ///
    /// # Errors
    /// [`Error::Invalid`] if an option is set.
    pub fn refuse(&self, name: &str) -> Result<()> {
        let refuse = |what: Field| {
            let why = format!(
                "transport {name} has no windows; leave {what} out, or choose {}",
                TRANSPORT.with("windows")
            );
            Err(Error::invalid(what, why))
        };
        match self {
            Self { faults, .. } if !faults.is_empty() => refuse(FAULTS),
            Self { mover: Some(_), .. } => refuse(MOVER),
            _ => Ok(()),
        }
    }

    /// Sets the environment variables of PE `pe`, which `command` will start.
    pub(crate) fn set(&self, pe: u32, command: &mut Command) {
        let faults = Some(&self.faults).filter(|faults| !faults.is_empty());
        let faults = faults.filter(|_| self.faulty.is_none_or(|faulty| faulty == pe)).cloned();
        let (mover, from) = (self.mover.as_ref(), self.mover_from);
        for (name, value) in [
            (FAULTS_VARIABLE, faults),
            (MOVER_VARIABLE, mover.map(MoverChoice::to_string)),
            (MOVER_FROM_VARIABLE, from.map(|from| from.to_string())),
        ] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// Returns the faults that the launcher asks this PE to inject.
pub(super) fn faults() -> Result<Faults> {
    Ok(of_launcher(FAULTS_VARIABLE)?.unwrap_or_default())
}

/// A mover, and the size in bytes from which it copies. `None`: the size is measured.
pub(super) type MoverFrom = (Box<dyn Mover>, Option<usize>);

/// Starts the mover that the launcher asks for. Returns it with the size from which it copies, if that is given.
pub(super) fn mover() -> Result<Option<MoverFrom>> {
    let from = of_launcher::<u64>(MOVER_FROM_VARIABLE)?.map(|from| from as usize);
    let choice = of_launcher::<MoverChoice>(MOVER_VARIABLE)?;
    choice.map(|choice| Ok((choice.start_twin()?, from))).transpose()
}
