//! Joins the job that the environment describes. The result is this process's membership in the job.

use super::member::{self, Member};
use super::membership::{Membership, Owned};
use super::{HEAP, Invitation, MEETING, PE, listening_address, manager, processors};
use crate::error::{Error, Result};
use crate::field::TRANSPORT;
use crate::transport::Statics;
use crate::transport::bootstrap::{JobSettings, Opening};
use crate::transport::select::{AnyTransport, Joined, TransportKind};
use crate::variables::{self, of_launcher};
use crate::world::World;
use inlane_core::completion::CompletionMode;
use std::sync::Arc;

/// A process that has joined a job, but has no transport yet.
pub struct Session {
    membership: Arc<Membership>,
    /// Size of the symmetric heap in bytes.
    heap_bytes: usize,
    /// Why the PEs communicate in this way, as text for the user.
    reason: String,
    joined: Joined,
    settings: JobSettings,
}

impl Session {
    /// Joins the job that environment variables describe. Without such variables, the process is a job of one
    /// PE. `additional` is the number of bytes of symmetric memory that the caller needs besides the heap, for example
    /// for the program's static objects.
    ///
    /// In a job of inlane's launcher, the launcher chooses the transport. Other jobs use the transport that
    /// [`variables::TRANSPORT`] names. Without this variable, they use [`TransportKind::between_machines`] if the PEs run
    /// on several machines, and the default transport otherwise.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid variable. Also if the job cannot be joined.
    pub fn from_environment(additional: usize) -> Result<Self> {
        Self::over(None, additional)
    }

    /// Joins the job as [`Session::from_environment`] does. `asked` is the transport that the user has
    /// chosen for this program, or `None`. `asked` has priority over the environment variable
    /// [`variables::TRANSPORT`].
    ///
    /// # Errors
    /// The same as [`Session::from_environment`]. Also [`Error::Invalid`] if inlane's launcher has chosen
    /// another transport.
    pub fn over(asked: Option<TransportKind>, additional: usize) -> Result<Self> {
        let heap_bytes = heap_bytes()?;
        if let Some(invitation) = of_launcher::<Invitation>(MEETING)? {
            let launched = invitation.kind;
            if let Some(asked) = asked.filter(|asked| *asked != launched) {
                let why = format!("the job is over {launched}; give the option to the launcher");
                return Err(Error::invalid(TRANSPORT.with(asked), why));
            }
            let Some(pe) = of_launcher::<u32>(PE)? else {
                return Err(Error::invalid(MEETING, format!("{PE} is missing; pass both to each PE")));
            };
            let reason =
                if launched.has_windows() { ON_ONE_MACHINE } else { "the launcher was asked for it" };
            return Self::join(&invitation, pe, (heap_bytes, additional), (None, None), reason.into());
        }
        let manager = manager::connect()?;
        let spread = manager
            .as_ref()
            .is_some_and(|manager| manager.local_size().is_some_and(|here| here < manager.size()));
        let (kind, reason) = choice(asked, TransportKind::asked_for()?, spread);
        match manager {
            Some(manager) => {
                let pe = manager.rank();
                let (member, invitation, heap_bytes) = member::meet(manager, kind, heap_bytes)?;
                Self::join(&invitation, pe, (heap_bytes, additional), (Some(member), None), reason)
            }
            None => {
                let address = listening_address(variables::address()?, true);
                let meeting = kind.meeting_point(&Opening { pes: 1, heap_bytes, address })?;
                let invitation = Invitation { kind, text: meeting.invitation()? };
                Self::join(&invitation, 0, (heap_bytes, additional), (None, Some(Box::new(meeting))), reason)
            }
        }
    }

    /// Joins the job by the invitation of its meeting point. All PEs must call it, because it exchanges the PEs' processors.
    /// If the PEs of this machine are more than the processors that they may use, waiting PEs yield their processor, unless
    /// [`variables::YIELD`] is set to 0.
    fn join(
        invitation: &Invitation,
        pe: u32,
        (heap_bytes, additional): (u64, usize),
        (member, owned): (Option<Member>, Option<Owned>),
        reason: String,
    ) -> Result<Self> {
        let heap_bytes = heap_bytes as usize;
        let needed = |pes| World::<AnyTransport>::symmetric_bytes(pes, additional, heap_bytes);
        let (connect_timeout, request_timeout) = variables::timeouts()?;
        let completion = completion()?;
        let joined = invitation.kind.join(&invitation.text, pe, &needed)?;
        let share_processors = match (joined.exchange(), &member) {
            (Some(exchange), _) => {
                let own = processors::announcement();
                let all = exchange.gather(own.as_bytes())?;
                processors::are_shared(
                    &own,
                    all.iter().map(|text| std::str::from_utf8(text).unwrap_or_default()),
                )
            }
            (None, Some(member)) => member.share_processors()?,
            (None, None) => false,
        };
        let yields = yields(share_processors)?;
        let settings = JobSettings { completion, yields, connect_timeout, request_timeout };
        let membership = Arc::new(Membership::new(&joined, member, owned));
        Ok(Self { membership, heap_bytes, reason, joined, settings })
    }

    /// Returns the membership in the job. It ends with the job, not with the session.
    pub fn membership(&self) -> Arc<Membership> {
        self.membership.clone()
    }

    /// Returns the number of PEs.
    pub fn pes(&self) -> u32 {
        self.joined.control().pes()
    }

    /// Returns the size of the symmetric heap in bytes that the user asks for.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    /// Returns how the PEs communicate.
    pub fn kind(&self) -> TransportKind {
        self.joined.kind()
    }

    /// Returns why the PEs communicate in this way, as text for the user.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Sets the completion mode of waits.
    pub fn set_completion(&mut self, mode: CompletionMode) {
        self.settings.completion = mode;
    }

    /// Returns true if waiting PEs leave their processor to others.
    pub fn yields(&self) -> bool {
        self.settings.yields
    }

    /// Connects to all PEs of the job. All PEs call it with the same `heap_bytes`. `statics` are the address and the
    /// length of the program's static objects in whole pages, for which [`World::new`] expects symmetric offsets.
    ///
    /// # Errors
    /// Errors of the transport.
    ///
    /// # Safety
    /// The memory of `statics` stays mapped and writable until the process ends. No other thread accesses it during this
    /// call.
    pub unsafe fn connect(self, heap_bytes: usize, statics: Option<(usize, usize)>) -> Result<AnyTransport> {
        let (pes, of_statics) = (self.pes(), statics.map_or(0, |(_, bytes)| bytes));
        let bytes = World::<AnyTransport>::symmetric_bytes(pes, of_statics, heap_bytes);
        let offset = World::<AnyTransport>::statics_offset(pes);
        let statics = statics.map(|(address, bytes)| Statics { offset, address, bytes });
        // SAFETY: the caller keeps the promises about the static objects.
        unsafe { self.joined.connect(bytes, statics, &self.settings) }
    }
}

/// The value of [`Session::reason`] over windows.
const ON_ONE_MACHINE: &str = "all PEs run on this machine";

/// Returns the transport of a job that inlane's launcher did not start, and why. The program asks for `by_program`, and the
/// user's environment for `by_variable`. `spread` is true if the PEs run on several machines.
fn choice(
    by_program: Option<TransportKind>,
    by_variable: Option<TransportKind>,
    spread: bool,
) -> (TransportKind, String) {
    let (kind, reason) = match (by_program, by_variable) {
        (Some(kind), _) => (kind, format!("{TRANSPORT} asks for it")),
        (None, Some(kind)) => (kind, format!("{} asks for it", variables::TRANSPORT)),
        (None, None) if spread => {
            (TransportKind::between_machines(), "the PEs run on several machines".into())
        }
        (None, None) => (TransportKind::default(), "it is the default".into()),
    };
    (kind, if kind.has_windows() { ON_ONE_MACHINE.into() } else { reason })
}

/// Returns the size in bytes of the symmetric heap that the launcher or the user asks for.
fn heap_bytes() -> Result<u64> {
    match of_launcher::<u64>("INLANE_NTB_HEAP")? {
        Some(bytes) => Ok(bytes),
        None => Ok(variables::heap_bytes()?.unwrap_or(HEAP)),
    }
}

/// Returns whether waiting PEs let other PEs run: as [`variables::YIELD`] says, or `usual` if it is not set.
fn yields(usual: bool) -> Result<bool> {
    const NAME: &str = variables::YIELD;
    match std::env::var_os(NAME) {
        None => Ok(usual),
        Some(value) if value == "0" => Ok(false),
        Some(value) if value == "1" => Ok(true),
        Some(value) => Err(Error::invalid(format!("{NAME}={}", value.display()), "give 0 or 1, or unset it")),
    }
}

/// Returns the completion mode that the launcher or the user asks for.
fn completion() -> Result<CompletionMode> {
    Ok(of_launcher("INLANE_NTB_COMPLETION")?.unwrap_or(CompletionMode::Adaptive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use inlane_core::setting::Choice;

    #[test]
    fn the_transport_is_what_the_program_or_else_the_environment_asks_for() {
        for (asked, other) in
            [(0, 1), (1, 0)].map(|(a, b)| (TransportKind::CHOICES[a].0, TransportKind::CHOICES[b].0))
        {
            for spread in [false, true] {
                assert_eq!(choice(Some(asked), Some(other), spread).0, asked);
                assert_eq!(choice(None, Some(asked), spread).0, asked);
            }
        }
        assert_eq!(choice(None, None, false), (TransportKind::default(), ON_ONE_MACHINE.into()));
        let (between_machines, reason) = choice(None, None, true);
        assert!(!between_machines.has_windows());
        assert_eq!(reason, "the PEs run on several machines");
    }
}
