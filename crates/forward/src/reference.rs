//! The reference with which checkers compare a packet function. Built-in functions have one in Rust. For other functions, the
//! user can name another packet function, which runs on the CPU.

use crate::config::{Config, Route};
use crate::error::{Error, Result};
use crate::field;
use inlane_core::Packet;
use inlane_core::ring::layout;
use inlane_function::{Instance, PacketFunction};
use inlane_ports::check::reference::{self, ExpectedVerdict, ReferenceFunction};
use inlane_ports::spec::Kind;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How many bytes a reference may add to a packet.
const GROWTH: usize = 512;

/// A packet function that serves as the reference of another one.
pub(crate) struct OwnReference {
    name: String,
    function: PacketFunction,
    instance: OnceLock<Mutex<Instance>>,
}

impl OwnReference {
    /// Compiles and loads the function. Drop privileges before.
    ///
    /// # Errors
    /// As for [`PacketFunction::instance`].
    pub fn load(&self) -> Result<()> {
        if self.instance.get().is_none() {
            let _ = self.instance.set(Mutex::new(self.function.instance()?));
        }
        Ok(())
    }

    /// Returns true if code of the user is compiled and loaded for the reference.
    pub fn is_user_code(&self) -> bool {
        self.function.is_user_code()
    }
}

impl ReferenceFunction for OwnReference {
    fn name(&self) -> &str {
        &self.name
    }

    fn apply(&self, frame: &mut Vec<u8>) -> ExpectedVerdict {
        let Some(instance) = self.instance.get() else { return ExpectedVerdict::Forward };
        let mut instance = instance.lock().unwrap_or_else(PoisonError::into_inner);
        let length = frame.len();
        frame.resize(length + GROWTH, 0);
        instance.set_room(frame.len() as u32);
        let packet = Packet { address: frame.as_mut_ptr() as u64, length: length as u32, port: 0, cookie: 0 };
        let mut verdicts = [layout::PacketVerdict { length: length as u32, verdict: layout::FORWARD }];
        // SAFETY: the frame has the room that was set, and nothing else accesses it.
        unsafe { instance.run_packets(&[packet], &mut verdicts, 0) };
        frame.truncate((verdicts[0].length as usize).min(frame.len()));
        match verdicts[0].verdict {
            layout::FORWARD => ExpectedVerdict::Forward,
            verdict if verdict >= layout::PORT_BASE => u16::try_from(verdict - layout::PORT_BASE)
                .map_or(ExpectedVerdict::Drop, ExpectedVerdict::Port),
            _ => ExpectedVerdict::Drop,
        }
    }

    fn is_ready(&self) -> bool {
        self.instance.get().is_some()
    }

    fn depends_on_payload(&self) -> bool {
        true
    }
}

/// The reference of a run's packet function.
#[derive(Clone)]
pub(crate) struct Reference {
    /// What a checker calls.
    pub function: Arc<dyn ReferenceFunction>,
    /// The function to load before, if the user named one that has no reference of its own.
    pub own: Option<Arc<OwnReference>>,
}

impl Reference {
    /// Finds the reference: the one that the settings name, or that of a built-in function. `None` if there is none.
    ///
    /// # Errors
    /// If the settings name a reference that does not exist or that nothing would use.
    pub fn of(config: &Config) -> Result<Option<Self>> {
        let known = |name: &str| reference::find(name).ok().map(|function| Self { function, own: None });
        let Some(name) = &config.reference else { return Ok(config.function.named().and_then(known)) };
        let checks = |kind| matches!(kind, Kind::Checker | Kind::Capture);
        if !matches!(&config.route, Route::OneWay { tx, .. } if tx.iter().any(|tx| checks(tx.kind()))) {
            let why = "nothing compares packets with it; send to check, or from a capture to another";
            return Err(Error::config(field::REFERENCE.with(name), why));
        }
        let function = PacketFunction::parse(name)?;
        Ok(Some(known(name).unwrap_or_else(|| {
            let own = Arc::new(OwnReference { name: name.clone(), function, instance: OnceLock::new() });
            Self { function: own.clone(), own: Some(own) }
        })))
    }
}
