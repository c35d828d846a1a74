//! A packet function: its name, its source and its settings.

use crate::abi::{ABI, FunctionEntry, FunctionInfo, WHOLE_PACKET};
use crate::builtins::{self, Builtin};
use crate::report::{FunctionReport, StateCounter};
use crate::rust_function::{FunctionSpec, OwnFunction, RustFunction};
use crate::source::FunctionSource;
use crate::user::{self, UserFunction};
use crate::{Error, Result};
use inlane_core::names::similar;
use std::path::Path;
use std::sync::Arc;

/// A packet function with its settings. Executors create instances from it. Clones share the code.
#[derive(Clone)]
pub struct PacketFunction {
    name: String,
    settings: Settings,
    code: Code,
}

/// The settings from the command line.
#[derive(Clone)]
struct Settings {
    text: String,
    /// The settings in binary form: the first bytes of the function's state.
    image: Vec<u8>,
}

#[derive(Clone)]
enum Code {
    Builtin(&'static Builtin),
    User(Arc<UserFunction>),
    Rust(OwnFunction),
}

/// The code that processes packets.
pub(crate) enum Processor {
    /// Code that was compiled from C++.
    Compiled(*const FunctionEntry),
    /// A function in Rust.
    Rust(Box<dyn RustFunction>),
}

impl PacketFunction {
    /// Returns the function that `spec` describes.
    ///
    /// # Errors
    /// As for [`PacketFunction::parse`], if the function is named.
    pub fn new(spec: &FunctionSpec) -> Result<Self> {
        match spec {
            FunctionSpec::Named(text) => Self::parse(text),
            FunctionSpec::Own(own) => Ok(Self {
                name: own.name.clone(),
                settings: Settings { text: String::new(), image: Vec::new() },
                code: Code::Rust(own.clone()),
            }),
        }
    }

    /// Returns a built-in function, named `NAME[:SETTINGS]`, or a user's function, named
    /// `FILE.cu[:NAME[:N,N...]]`. Compiles and runs nothing.
    ///
    /// # Errors
    /// [`Error::Unknown`] if there is no such built-in function. [`Error::Settings`] if the settings are
    /// wrong. [`Error::File`] if the file cannot be read or has no such function.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((path, name, parameters)) = user::split(text) {
            return Self::from_file(Path::new(path), name, parameters);
        }
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name, settings),
            None => (text, ""),
        };
        let builtin = builtins::find(name).ok_or_else(|| match name.contains(['.', '/']) {
            true => Error::File {
                path: name.into(),
                why: "the name of a file with your own packet function must end with .cu".into(),
            },
            false => Error::Unknown {
                name: name.into(),
                nearest: similar(name, builtins::names()),
                known: builtins::names().map(str::to_owned).collect(),
            },
        })?;
        let image = (builtin.settings)(settings).map_err(|why| Error::Settings { name: name.into(), why })?;
        Ok(Self {
            name: builtin.name.into(),
            settings: Settings { text: settings.into(), image },
            code: Code::Builtin(builtin),
        })
    }

    /// Returns the source file that `text`, as for [`PacketFunction::parse`], names. `None` for a built-in function.
    pub fn source_file(text: &str) -> Option<&Path> {
        user::split(text).map(|(path, ..)| Path::new(path))
    }

    /// Returns true for a function of the user's that is compiled and loaded during the run. A function in Rust is part of
    /// the program already.
    pub fn is_user_code(&self) -> bool {
        matches!(self.code, Code::User(_))
    }

    /// Returns the function `name` of a user's source file. An empty `name` stands for the only function of
    /// the file. `parameters`, such as `4789,0x10`, become the first members of the function's state.
    /// Compiles and runs nothing.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or does not contain the function, and [`Error::Settings`]
    /// if the parameters are wrong.
    pub fn from_file(path: &Path, name: &str, parameters: &str) -> Result<Self> {
        let user = UserFunction::read(path, name)?;
        let image =
            user::parameters(parameters).map_err(|why| Error::Settings { name: user.symbol.clone(), why })?;
        Ok(Self {
            name: user.symbol.clone(),
            settings: Settings { text: parameters.into(), image },
            code: Code::User(user.into()),
        })
    }

    /// Returns the function's name, as on the command line.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a description of the function in one line.
    pub fn about(&self) -> &str {
        match &self.code {
            Code::Builtin(builtin) => builtin.about,
            Code::User(_) | Code::Rust(_) => "a function of the user's",
        }
    }

    /// Returns the function's C++ source. `None` for a function in Rust, which runs on the CPU only.
    pub fn source(&self) -> Option<FunctionSource<'_>> {
        match &self.code {
            Code::Builtin(builtin) => Some(builtin.source()),
            Code::User(user) => Some(user.source()),
            Code::Rust(_) => None,
        }
    }

    /// Returns the function's properties. Compiles a user's function for the CPU and loads it. For a GPU,
    /// read them from the module instead, see [`FunctionSource::for_gpu`].
    ///
    /// # Errors
    /// For users' functions only: [`Error::Compile`] with the compiler's messages. [`Error::Environment`] if
    /// the compiler is missing, or its output cannot be stored or loaded.
    pub fn info(&self) -> Result<FunctionInfo> {
        let entry = match &self.code {
            Code::Builtin(builtin) => builtin.entry(),
            Code::User(user) => user.load()?,
            Code::Rust(_) => {
                return Ok(FunctionInfo {
                    abi: ABI,
                    reads: WHOLE_PACKET,
                    writes: WHOLE_PACKET,
                    ..Default::default()
                });
            }
        };
        // SAFETY: the entry is a constant of loaded code, which stays loaded while `self` lives.
        Ok(unsafe { (*entry).info })
    }

    /// Returns the first bytes of a pipeline's initial state, which hold the settings. All further bytes are
    /// zero.
    ///
    /// # Errors
    /// [`Error::Settings`] if the function's state has no place for the settings.
    pub fn initial_state(&self, info: &FunctionInfo) -> Result<Vec<u8>> {
        let image = &self.settings.image;
        let wrong = |why: String| {
            let why = format!("'{}': {why}", self.settings.text);
            Error::Settings { name: self.name.clone(), why }
        };
        match &self.code {
            Code::Builtin(_) if image.len() as u64 > info.state_bytes => {
                Err(wrong(format!("they do not fit into its state of {} bytes", info.state_bytes)))?
            }
            Code::User(_) if image.len() > info.parameters as usize * 8 => Err(wrong(format!(
                "it declares {} parameters; write 'static constexpr uint32_t parameters = N', and begin the struct with N \
                 members of type uint64_t",
                info.parameters
            )))?,
            _ => {}
        }
        Ok(image.clone())
    }

    /// Returns the names of the counters that the source declares with `INLANE_COUNTER`. A compiled module exports an
    /// `inlane_counter_SYMBOL_NAME` for each, unless the preprocessor removed it: see
    /// [`CounterPlace`](crate::abi::CounterPlace).
    pub fn declared_counters(&self) -> &[String] {
        match &self.code {
            Code::User(user) => &user.counters,
            Code::Builtin(_) | Code::Rust(_) => &[],
        }
    }

    /// Makes the function's report from a pipeline's state after a run. The state must be in host memory. `counters` are
    /// those of [`PacketFunction::declared_counters`] that the compiled code has.
    pub fn report(&self, state: &[u8], counters: &[StateCounter]) -> FunctionReport {
        match &self.code {
            Code::Builtin(builtin) => (builtin.report)(state, &self.settings.text),
            Code::User(_) => FunctionReport::from_places(state, counters),
            Code::Rust(_) => FunctionReport::default(),
        }
    }

    /// Returns the counters of the code that was compiled for the CPU.
    pub(crate) fn cpu_counters(&self) -> Vec<StateCounter> {
        match &self.code {
            Code::User(user) => user.loaded_counters(),
            Code::Builtin(_) | Code::Rust(_) => Vec::new(),
        }
    }

    /// Returns the code for one CPU thread. Compiles and loads a user's function if necessary.
    pub(crate) fn processor(&self) -> Result<Processor> {
        Ok(match &self.code {
            Code::Builtin(builtin) => Processor::Compiled(builtin.entry()),
            Code::User(user) => Processor::Compiled(user.load()?),
            Code::Rust(own) => Processor::Rust(own.create()),
        })
    }
}

impl std::fmt::Debug for PacketFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketFunction")
            .field("name", &self.name)
            .field("file", &self.source().map(|source| source.file))
            .finish_non_exhaustive()
    }
}
