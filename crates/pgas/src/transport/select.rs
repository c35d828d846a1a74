//! The choice of a transport: `windows` or `ucx`. [`AnyTransport`] holds the transport that the user chose.

use super::ucx::Ucx;
use super::windows::Windows;
use super::{Atomic, Awaited, Capabilities, Check, Transport};
use crate::error::{Error, Result};
use crate::field::TRANSPORT;
use std::str::FromStr;

/// A transport, as users name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    /// Memory windows, for PEs on one machine or on virtual machines that share a device.
    #[default]
    Windows,
    /// UCX, for PEs on any machines: shared memory, TCP or RDMA.
    Ucx,
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "windows" => Ok(TransportKind::Windows),
            "ucx" => Ok(TransportKind::Ucx),
            _ => Err(Error::invalid(TRANSPORT.with(text), "choose one of windows, ucx")),
        }
    }
}

impl std::fmt::Display for TransportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TransportKind::Windows => "windows",
            TransportKind::Ucx => "ucx",
        })
    }
}

/// One of the transports.
// The larger variant is not boxed, because a pointer would cost each operation a load.
#[allow(clippy::large_enum_variant)]
pub enum AnyTransport {
    /// Over memory windows.
    Windows(Windows),
    /// Over UCX.
    Ucx(Ucx),
}

/// Evaluates `$call` for the transport that `$self` holds. `$call` calls a method of `$transport`.
macro_rules! either {
    ($self:ident, $transport:ident => $call:expr) => {
        match $self {
            AnyTransport::Windows($transport) => $call,
            AnyTransport::Ucx($transport) => $call,
        }
    };
}

impl AnyTransport {
    /// Returns the name of what connects the PEs: the back-end of windows, such as `twin`, or `ucx`.
    pub fn name(&self) -> &'static str {
        match self {
            AnyTransport::Windows(windows) => windows.ntb().capabilities().name,
            AnyTransport::Ucx(_) => "ucx",
        }
    }

    /// Returns which transport is in use.
    pub fn kind(&self) -> TransportKind {
        match self {
            AnyTransport::Windows(_) => TransportKind::Windows,
            AnyTransport::Ucx(_) => TransportKind::Ucx,
        }
    }
}

impl Transport for AnyTransport {
    #[inline]
    fn me(&self) -> u32 {
        either!(self, transport => transport.me())
    }

    #[inline]
    fn pes(&self) -> u32 {
        either!(self, transport => transport.pes())
    }

    fn symmetric(&self) -> (*mut u8, usize) {
        either!(self, transport => transport.symmetric())
    }

    fn context(&self) -> Option<Self> {
        match self {
            AnyTransport::Windows(windows) => windows.context().map(AnyTransport::Windows),
            AnyTransport::Ucx(ucx) => ucx.context().map(AnyTransport::Ucx),
        }
    }

    fn alignment(&self) -> usize {
        either!(self, transport => transport.alignment())
    }

    fn slices_from(&self) -> usize {
        either!(self, transport => transport.slices_from())
    }

    fn direct(&self, pe: u32, offset: usize) -> Option<*mut u8> {
        either!(self, transport => transport.direct(pe, offset))
    }

    fn capabilities(&self) -> Capabilities {
        either!(self, transport => transport.capabilities())
    }

    #[inline(always)]
    unsafe fn put(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the safety contract of this function. The called function has the same
        // contract.
        either!(self, transport => unsafe { transport.put(pe, offset, source, length) })
    }

    #[inline]
    unsafe fn put_nbi(&self, pe: u32, offset: usize, source: *const u8, length: usize) -> Result<()> {
        // SAFETY: the caller keeps the safety contract of this function. The called function has the same
        // contract.
        either!(self, transport => unsafe { transport.put_nbi(pe, offset, source, length) })
    }

    #[inline]
    unsafe fn get(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()> {
        // SAFETY: both functions have the same safety contract, and the caller guarantees it.
        either!(self, transport => unsafe { transport.get(pe, offset, destination, length) })
    }

    #[inline]
    unsafe fn get_nbi(&self, pe: u32, offset: usize, destination: *mut u8, length: usize) -> Result<()> {
        // SAFETY: the caller guarantees the contract of `get_nbi`, which both transports share.
        either!(self, transport => unsafe { transport.get_nbi(pe, offset, destination, length) })
    }

    fn atomic(&self, pe: u32, atomic: Atomic) -> Result<u64> {
        either!(self, transport => transport.atomic(pe, atomic))
    }

    fn atomic_nbi(&self, pe: u32, atomic: Atomic) -> Result<()> {
        either!(self, transport => transport.atomic_nbi(pe, atomic))
    }

    unsafe fn atomic_fetch_nbi(&self, pe: u32, atomic: Atomic, result: *mut u8) -> Result<()> {
        // SAFETY: the caller keeps the safety contract of this function. The called function has the same
        // contract.
        either!(self, transport => unsafe { transport.atomic_fetch_nbi(pe, atomic, result) })
    }

    fn order(&self) -> Result<()> {
        either!(self, transport => transport.order())
    }

    fn fence(&self) -> Result<()> {
        either!(self, transport => transport.fence())
    }

    fn quiet(&self) -> Result<()> {
        either!(self, transport => transport.quiet())
    }

    fn quiet_all(&self) -> Result<()> {
        either!(self, transport => transport.quiet_all())
    }

    fn notify(&self, pe: u32) -> Result<()> {
        either!(self, transport => transport.notify(pe))
    }

    fn take_notification(&self, pe: u32, check: Check<'_>) -> Result<()> {
        either!(self, transport => transport.take_notification(pe, check))
    }

    fn wait(&self, awaited: Awaited, done: &mut dyn FnMut() -> bool, check: Check<'_>) -> Result<()> {
        either!(self, transport => transport.wait(awaited, done, check))
    }

    fn progress(&self) {
        either!(self, transport => transport.progress());
    }

    fn shares_processors(&self) -> bool {
        either!(self, transport => transport.shares_processors())
    }

    fn yield_if_idle(&self) {
        either!(self, transport => transport.yield_if_idle());
    }

    fn leave(&self) -> Result<()> {
        either!(self, transport => transport.leave())
    }
}
