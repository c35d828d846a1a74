//! A packet function: its name, its source, what it was set to, and how it becomes an [`Instance`] on the CPU.

use crate::abi::{Entry, Info};
use crate::builtins::{self, Builtin};
use crate::instance::Instance;
use crate::report::Report;
use crate::{Error, Result};
use std::sync::Arc;

/// A packet function with its settings, ready to be instantiated by an executor. Clones share the code.
#[derive(Clone)]
pub struct Function {
    name: String,
    about: String,
    symbol: String,
    file: String,
    source: Arc<str>,
    settings: Settings,
    code: Code,
}

/// What the command line set.
#[derive(Clone)]
struct Settings {
    text: String,
    /// As the beginning of the function's state.
    image: Vec<u8>,
}

#[derive(Clone)]
enum Code {
    Builtin(&'static Builtin),
}

impl Function {
    /// The function that a command line names: `NAME[:SETTINGS]` for a built-in one.
    ///
    /// # Errors
    /// [`Error::Unknown`] for another name, [`Error::Settings`] for settings that it cannot read.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, settings),
            None => (text, ""),
        };
        let builtin = builtins::find(name).ok_or_else(|| Error::Unknown {
            name: name.into(),
            known: builtins::names().collect::<Vec<_>>().join(", "),
        })?;
        let image = (builtin.settings)(settings).map_err(|why| Error::Settings {
            name: name.into(),
            settings: settings.into(),
            why,
        })?;
        Ok(Self {
            name: builtin.name.into(),
            about: builtin.about.into(),
            symbol: builtin.built().symbol.into(),
            file: format!("{}.cu", builtin.built().symbol),
            source: builtin.built().source.into(),
            settings: Settings { text: settings.into(), image },
            code: Code::Builtin(builtin),
        })
    }

    /// Its name, as on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does, in a line.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Its name in the source: `inlane_info_SYMBOL` in a module, `inlane_registered_SYMBOL` as a type.
    pub fn symbol(&self) -> &str {
        &self.symbol
    }

    /// Its source, to be compiled with [`crate::HEADERS`].
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What compilers should call its source in their messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What the host must know of it.
    ///
    /// # Errors
    /// None for built-in functions.
    pub fn info(&self) -> Result<Info> {
        // SAFETY: entries are constants.
        Ok(unsafe { (*self.entry()?).info })
    }

    fn entry(&self) -> Result<*const Entry> {
        match &self.code {
            Code::Builtin(builtin) => Ok(builtin.entry()),
        }
    }

    /// The bytes that a pipeline's state begins with; the rest of it is zero.
    ///
    /// # Errors
    /// [`Error::Settings`] when the function has no place for what was set.
    pub fn initial_state(&self, info: &Info) -> Result<Vec<u8>> {
        let image = &self.settings.image;
        if image.len() as u64 > info.state_bytes {
            return Err(Error::Settings {
                name: self.name.clone(),
                settings: self.settings.text.clone(),
                why: format!(
                    "{} bytes of settings do not fit its state of {} bytes",
                    image.len(),
                    info.state_bytes
                ),
            });
        }
        Ok(image.clone())
    }

    /// What the function has to say after a run, from a pipeline's state (on a GPU: copied back).
    pub fn report(&self, state: &[u8]) -> Report {
        match &self.code {
            Code::Builtin(builtin) => (builtin.report)(state, &self.settings.text),
        }
    }

    /// One pipeline's use of it on the CPU.
    ///
    /// # Errors
    /// [`Error::Core`] when there is no memory for its state.
    pub fn instance(&self) -> Result<Instance> {
        Instance::new(self.clone(), self.entry()?)
    }
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function").field("name", &self.name).field("file", &self.file).finish_non_exhaustive()
    }
}
