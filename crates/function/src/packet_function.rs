//! A packet function: its name, its source, what it was set to, and how it becomes an [`Instance`] on the CPU.

use crate::abi::{FunctionEntry, FunctionInfo};
use crate::builtins::{self, Builtin};
use crate::instance::Instance;
use crate::report::FunctionReport;
use crate::user::{self, UserFunction};
use crate::{Error, Result};
use std::path::Path;
use std::sync::Arc;

/// A packet function with its settings, ready to be instantiated by an executor. Clones share the code.
#[derive(Clone)]
pub struct PacketFunction {
    name: String,
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
    User(Arc<UserFunction>),
}

impl PacketFunction {
    /// The function that a command line names: `NAME[:SETTINGS]` for a built-in one, `FILE.cu[:NAME[:N,N...]]` for the
    /// user's own.
    ///
    /// # Errors
    /// [`Error::Unknown`] for another name, [`Error::Settings`] for settings that it cannot read, [`Error::File`] for a
    /// file that cannot be read or has no such function.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((path, name, parameters)) = user::split(text) {
            return Self::from_file(Path::new(path), name, parameters);
        }
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
            settings: Settings { text: settings.into(), image },
            code: Code::Builtin(builtin),
        })
    }

    /// Returns true for a function of the user's own, false for a built-in one.
    pub fn is_user_code(&self) -> bool {
        matches!(self.code, Code::User(_))
    }

    /// The user's own function `name` of a source file; its name may be empty when the file has one only. `parameters` are
    /// whole numbers (`4789,0x10`) that its state begins with. Nothing is compiled yet.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read or has no such function, [`Error::Settings`] for wrong parameters.
    pub fn from_file(path: &Path, name: &str, parameters: &str) -> Result<Self> {
        let own = UserFunction::read(path, name)?;
        let image = user::parameters(parameters).map_err(|why| Error::Settings {
            name: own.symbol.clone(),
            settings: parameters.into(),
            why,
        })?;
        Ok(Self {
            name: own.symbol.clone(),
            settings: Settings { text: parameters.into(), image },
            code: Code::User(own.into()),
        })
    }

    /// Returns C++ text that asserts that the structs which Rust shares with this function's code have the same layout there.
    pub(crate) fn layout_assertions(&self) -> String {
        let state = match &self.code {
            Code::Builtin(builtin) => (builtin.layout)(),
            Code::User(_) => String::new(),
        };
        crate::abi::layout_assertions() + &state
    }

    /// Its name, as on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does, in a line.
    pub fn about(&self) -> &str {
        match &self.code {
            Code::Builtin(builtin) => builtin.about,
            Code::User(_) => "the user's own",
        }
    }

    /// Its name in the source: `inlane_info_SYMBOL` in a module, `inlane_registered_SYMBOL` as a type.
    pub fn symbol(&self) -> &str {
        match &self.code {
            Code::Builtin(builtin) => builtin.built().symbol,
            Code::User(own) => &own.symbol,
        }
    }

    /// Its source, to be compiled with [`crate::HEADERS`].
    pub fn source(&self) -> &str {
        match &self.code {
            Code::Builtin(builtin) => builtin.built().source,
            Code::User(own) => &own.source,
        }
    }

    /// What compilers should call its source in their messages.
    pub fn file(&self) -> &str {
        match &self.code {
            Code::Builtin(builtin) => builtin.built().file,
            Code::User(own) => &own.file,
        }
    }

    /// What the host must know of it. A user's own is compiled for the CPU to learn it; for a GPU alone, read it from the
    /// module instead ([`PacketFunction::gpu_source`]).
    ///
    /// # Errors
    /// None for built-in functions; else [`Error::Compile`] with the compiler's messages, or [`Error::Environment`].
    pub fn info(&self) -> Result<FunctionInfo> {
        // SAFETY: entries are constants.
        Ok(unsafe { (*self.entry()?).info })
    }

    fn entry(&self) -> Result<*const FunctionEntry> {
        match &self.code {
            Code::Builtin(builtin) => Ok(builtin.entry()),
            Code::User(own) => own.load(),
        }
    }

    /// The bytes that a pipeline's state begins with; the rest of it is zero.
    ///
    /// # Errors
    /// [`Error::Settings`] when the function has no place for what was set.
    pub fn initial_state(&self, info: &FunctionInfo) -> Result<Vec<u8>> {
        let image = &self.settings.image;
        let wrong =
            |why| Error::Settings { name: self.name.clone(), settings: self.settings.text.clone(), why };
        match &self.code {
            Code::Builtin(_) if image.len() as u64 > info.state_bytes => {
                Err(wrong(format!("they do not fit its state of {} bytes", info.state_bytes)))?
            }
            Code::User(_) if image.len() > info.parameters as usize * 8 => Err(wrong(format!(
                "it has {} parameters; say how many with 'static constexpr uint32_t parameters = N', and make the struct's \
                 first members so many uint64_t",
                info.parameters
            )))?,
            _ => {}
        }
        Ok(image.clone())
    }

    /// What the function has to say after a run, from a pipeline's state (on a GPU: copied back).
    pub fn report(&self, state: &[u8]) -> FunctionReport {
        match &self.code {
            Code::Builtin(builtin) => (builtin.report)(state, &self.settings.text),
            Code::User(_) => FunctionReport::default(),
        }
    }

    /// One pipeline's use of it on the CPU.
    ///
    /// # Errors
    /// [`Error::Core`] when there is no memory for its state; for a user's own as for [`PacketFunction::info`].
    pub fn instance(&self) -> Result<Instance> {
        Instance::new(self.clone(), self.entry()?)
    }
}

impl std::fmt::Debug for PacketFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketFunction")
            .field("name", &self.name)
            .field("file", &self.file())
            .finish_non_exhaustive()
    }
}
