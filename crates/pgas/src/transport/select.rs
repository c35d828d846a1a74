//! The list of transports, and the choice between them. [`AnyTransport`] holds the transport that the user chose.

use super::bootstrap::{Exchange, JobControl, JobSettings, MeetingPoint, Network, Opening};
use super::{Atomic, Awaited, Capabilities, Check, Reuse, Statics, Transport};
use crate::error::{Error, Result};
use crate::field::TRANSPORT;
use crate::variables;
use inlane_core::setting::Choice;
use std::str::FromStr;
use std::sync::Arc;

/// Defines [`TransportKind`], [`Joined`] and [`AnyTransport`] from the list of transports: for each, its variant, its name,
/// a line of help, and its type.
macro_rules! transports {
    ($($variant:ident = $name:literal, $help:literal: $transport:ty;)+) => {
        /// A transport, as users name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum TransportKind {
            $(#[doc = concat!($help, ".")] $variant,)+
        }

        impl Choice for TransportKind {
            const CHOICES: &[(Self, &str, &str)] = &[$((TransportKind::$variant, $name, $help)),+];
        }

        impl TransportKind {
            /// Opens the meeting point of a job, as [`Network::meeting_point`] does.
            ///
            /// # Errors
            /// As for [`Network::meeting_point`].
            pub fn meeting_point(self, opening: &Opening) -> Result<Arc<dyn MeetingPoint>> {
                match self { $(TransportKind::$variant => <$transport>::meeting_point(opening),)+ }
            }

            /// Returns [`Network::VARIABLES`].
            pub fn variables(self) -> &'static [(&'static str, &'static str)] {
                match self { $(TransportKind::$variant => <$transport>::VARIABLES,)+ }
            }

            /// Returns the version of the transport's library, as [`Network::version`] does.
            ///
            /// # Errors
            /// As for [`Network::version`].
            pub fn version(self) -> Result<String> {
                match self { $(TransportKind::$variant => <$transport as Network>::version(),)+ }
            }

            /// Returns [`Network::HAS_WINDOWS`].
            pub fn has_windows(self) -> bool {
                match self { $(TransportKind::$variant => <$transport>::HAS_WINDOWS,)+ }
            }

            /// Returns [`Network::USES_UCX`].
            pub fn uses_ucx(self) -> bool {
                match self { $(TransportKind::$variant => <$transport>::USES_UCX,)+ }
            }

            /// Returns [`Network::RESTRICTED_BY`].
            pub fn restricted_by(self) -> &'static [&'static str] {
                match self { $(TransportKind::$variant => <$transport>::RESTRICTED_BY,)+ }
            }

            /// Returns [`Network::MAY_ABORT`].
            pub fn may_abort(self) -> bool {
                match self { $(TransportKind::$variant => <$transport>::MAY_ABORT,)+ }
            }

            /// Removes what killed PEs may have left, as [`Network::clean_up`] does.
            pub fn clean_up(self, ends: bool) {
                match self { $(TransportKind::$variant => <$transport>::clean_up(ends),)+ }
            }

            /// Joins a job, as [`Network::join`] does.
            ///
            /// # Errors
            /// As for [`Network::join`].
            pub fn join(self, invitation: &str, pe: u32, needed: &dyn Fn(u32) -> usize) -> Result<Joined> {
                Ok(match self {
                    $(TransportKind::$variant => {
                        Joined::$variant(<$transport>::join(invitation, pe, needed)?)
                    })+
                })
            }
        }

        /// A PE that has joined a job over one of the transports, but has not connected to the other PEs yet.
        pub enum Joined {
            $(#[doc = concat!($help, ".")] $variant(Arc<<$transport as Network>::Link>),)+
        }

        impl Joined {
            /// Returns the transport of the job.
            pub fn kind(&self) -> TransportKind {
                match self { $(Joined::$variant(_) => TransportKind::$variant,)+ }
            }

            /// Returns this PE's connection to the meeting point.
            pub fn control(&self) -> Arc<dyn JobControl> {
                match self { $(Joined::$variant(link) => link.clone(),)+ }
            }

            /// Returns what exchanges bytes between the PEs, if there is such a service.
            pub fn exchange(&self) -> Option<&dyn Exchange> {
                match self { $(Joined::$variant(link) => <$transport>::exchange(link),)+ }
            }

            /// Connects to all PEs, as [`Network::connect_job`] does.
            ///
            /// # Errors
            /// As for [`Network::connect_job`].
            ///
            /// # Safety
            /// As for [`Network::connect_job`].
            pub unsafe fn connect(
                self,
                bytes: usize,
                statics: Option<Statics>,
                settings: &JobSettings,
            ) -> Result<AnyTransport> {
                Ok(match self {
                    $(Joined::$variant(link) => {
                        // SAFETY: the caller keeps the safety contract, which is the same.
                        AnyTransport::$variant(unsafe { <$transport>::connect_job(link, bytes, statics, settings)? })
                    })+
                })
            }
        }

        /// One of the transports.
        // The larger variant is not boxed, because a pointer would cost each operation a load.
        #[allow(clippy::large_enum_variant)]
        pub enum AnyTransport {
            $(#[doc = concat!($help, ".")] $variant($transport),)+
        }

        impl AnyTransport {
            /// Returns the name of what connects the PEs: the back-end of windows, such as `twin`, or `ucx`.
            pub fn name(&self) -> String {
                match self { $(AnyTransport::$variant(transport) => transport.name(),)+ }
            }

            /// Returns a text about the path of puts and gets, for the user.
            pub fn path(&self) -> String {
                match self { $(AnyTransport::$variant(transport) => transport.path(),)+ }
            }

            /// Returns which transport is in use.
            pub fn kind(&self) -> TransportKind {
                match self { $(AnyTransport::$variant(_) => TransportKind::$variant,)+ }
            }

            /// Returns the transport of another context, as [`Transport::context`] does.
            fn another_context(&self) -> Option<Self> {
                match self {
                    $(AnyTransport::$variant(transport) => transport.context().map(AnyTransport::$variant),)+
                }
            }
        }

        /// Evaluates `$call` for the transport that `$self` holds. `$call` calls a method of `$held`.
        macro_rules! held {
            ($self:ident, $held:ident => $call:expr) => {
                match $self { $(AnyTransport::$variant($held) => $call,)+ }
            };
        }
    };
}

transports! {
    Windows = "windows", "Memory windows, for PEs on one machine or on virtual machines that share a device":
        super::windows::Windows;
    Ucx = "ucx", "UCX, for PEs on any machines: shared memory, TCP or RDMA": super::ucx::Ucx;
}

impl TransportKind {
    /// Returns the transport that the user asks for by [`variables::TRANSPORT`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value that is no transport.
    pub fn asked_for() -> Result<Option<Self>> {
        variables::parsed(variables::TRANSPORT, "")
    }

    /// Returns the transport of jobs whose PEs run on several machines, unless the user asks for another: the first one of
    /// the list that connects the PEs through a network.
    pub fn between_machines() -> Self {
        let kinds = || Self::CHOICES.iter().map(|(kind, ..)| *kind);
        kinds().find(|kind| !kind.has_windows()).unwrap_or_default()
    }
}

impl Default for TransportKind {
    fn default() -> Self {
        Self::CHOICES[0].0
    }
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::named(text).ok_or_else(|| {
            let names: Vec<_> = Self::CHOICES.iter().map(|(_, name, _)| *name).collect();
            Error::invalid(TRANSPORT.with(text), format!("choose one of {}", names.join(", ")))
        })
    }
}

impl std::fmt::Display for TransportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Transport for AnyTransport {
    #[inline]
    fn me(&self) -> u32 {
        held!(self, transport => transport.me())
    }

    #[inline]
    fn pes(&self) -> u32 {
        held!(self, transport => transport.pes())
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        held!(self, transport => transport.symmetric())
    }

    fn context(&self) -> Option<Self> {
        self.another_context()
    }

    fn alignment(&self) -> usize {
        held!(self, transport => transport.alignment())
    }

    fn slices_from(&self) -> usize {
        held!(self, transport => transport.slices_from())
    }

    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8> {
        held!(self, transport => transport.direct(pe, offset))
    }

    fn capabilities(&self) -> Capabilities {
        held!(self, transport => transport.capabilities())
    }

    #[inline(always)]
    unsafe fn put(
        &self,
        pe: u32,
        offset: usize,
        source: *const u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        // SAFETY: the caller keeps the safety contract of this function. The called function has the same
        // contract.
        held!(self, transport => unsafe { transport.put(pe, offset, source, length, reuse) })
    }

    #[inline]
    unsafe fn get(
        &self,
        pe: u32,
        offset: usize,
        destination: *mut u8,
        length: usize,
        reuse: Reuse,
    ) -> Result<()> {
        // SAFETY: both functions have the same safety contract, and the caller guarantees it.
        held!(self, transport => unsafe { transport.get(pe, offset, destination, length, reuse) })
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        held!(self, transport => transport.atomic(pe, atomic))
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        held!(self, transport => transport.atomic_nbi(pe, atomic))
    }

    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()> {
        // SAFETY: the caller keeps the safety contract of this function. The called function has the same
        // contract.
        held!(self, transport => unsafe { transport.atomic_fetch_nbi(pe, atomic, result) })
    }

    fn order(&self) -> Result<()> {
        held!(self, transport => transport.order())
    }

    fn fence(&self) -> Result<()> {
        held!(self, transport => transport.fence())
    }

    fn quiet(&self) -> Result<()> {
        held!(self, transport => transport.quiet())
    }

    fn quiet_all(&self) -> Result<()> {
        held!(self, transport => transport.quiet_all())
    }

    fn notify(&self, pe: u32) -> Result<()> {
        held!(self, transport => transport.notify(pe))
    }

    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()> {
        held!(self, transport => transport.take_notification(pe, check))
    }

    fn wait(&self, awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()> {
        held!(self, transport => transport.wait(awaited, done, check))
    }

    fn progress(&self) {
        held!(self, transport => transport.progress());
    }

    fn shares_processors(&self) -> bool {
        held!(self, transport => transport.shares_processors())
    }

    fn yield_if_idle(&self) {
        held!(self, transport => transport.yield_if_idle());
    }

    fn leave(&self) -> Result<()> {
        held!(self, transport => transport.leave())
    }
}
