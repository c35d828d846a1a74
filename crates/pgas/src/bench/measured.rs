//! What the bench needs of a transport beyond [`Transport`]: waits in a chosen completion mode, names of the
//! paths, and cases that exist for only one transport.

use super::{Bench, Point};
use crate::error::{Error, Lost, Result};
use crate::transport::select::AnyTransport;
use crate::transport::windows::Windows;
use crate::transport::windows::wait::{FailureScope, WaitOptions};
use crate::transport::windows::wakeup::Interest;
use crate::transport::{Awaited, Transport};
use inlane_core::completion::CompletionMode;
use std::time::Duration;

/// All completion modes.
pub(super) const MODES: [CompletionMode; 3] =
    [CompletionMode::Poll, CompletionMode::Adaptive, CompletionMode::Interrupt];
/// The longest time that the bench waits for an operation before it fails.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A transport that the bench can measure.
pub(super) trait Measured: Transport + Sized {
    /// True if puts and atomics of the other PE may arrive only while a thread of this PE calls the transport. False if
    /// they arrive without calls at this PE.
    const NEEDS_PROGRESS: bool;

    /// Returns two names for results: what copies the bytes of puts to `other`, and what copies the bytes of
    /// gets from `other`. Examples are `stores` and `loads`.
    fn carriers(&self, other: u32) -> [String; 2];

    /// Blocks in completion mode `mode` until `done` returns true. `done` must check the word at `offset` of
    /// this PE's symmetric memory. PE `other` puts `bytes` bytes and then stores this word.
    ///
    /// # Errors
    /// If `other` has ended, or after 30 s.
    fn wait_in_mode(
        &self,
        mode: CompletionMode,
        other: u32,
        offset: usize,
        bytes: u64,
        done: impl FnMut() -> bool,
    ) -> Result<()>;

    /// Measures the cases that only this transport has and that do not depend on a size. Doorbells are an
    /// example. By default, there are no such cases.
    ///
    /// # Errors
    /// Errors of the transport.
    fn own_cases(_bench: &Bench<Self>) -> Result<Vec<Point>> {
        Ok(Vec::new())
    }

    /// Measures the kinds of transfers that only this transport has, such as gets by push. Each transfer has
    /// `size` bytes. By default, there are no such kinds.
    ///
    /// # Errors
    /// Errors of the transport. Also if bytes arrive altered.
    fn own_transfers(_bench: &Bench<Self>, _size: usize) -> Result<Vec<Point>> {
        Ok(Vec::new())
    }
}

impl Measured for Windows {
    const NEEDS_PROGRESS: bool = false;

    fn carriers(&self, _other: u32) -> [String; 2] {
        ["stores", "loads"].map(Into::into)
    }

    fn wait_in_mode(
        &self,
        mode: CompletionMode,
        other: u32,
        offset: usize,
        bytes: u64,
        done: impl FnMut() -> bool,
    ) -> Result<()> {
        let (interest, timeout) = (Interest::Word(offset), Some(LONGEST_WAIT));
        let options = WaitOptions { mode, bytes, interest, timeout, what: "a put" };
        self.wait_with(options, FailureScope::Peer(other), done)
    }

    fn own_cases(bench: &Bench<Self>) -> Result<Vec<Point>> {
        let cases = MODES.map(|completion| bench.doorbell(completion));
        Ok(cases.into_iter().collect::<Result<Vec<_>>>()?.concat())
    }

    fn own_transfers(bench: &Bench<Self>, size: usize) -> Result<Vec<Point>> {
        bench.pushed(size)
    }
}

impl Measured for AnyTransport {
    const NEEDS_PROGRESS: bool = true;

    fn carriers(&self, other: u32) -> [String; 2] {
        let path = self.capabilities();
        let (name, methods) = (path.name, path.methods.join(", "));
        match self.direct(other, 0) {
            Some(_) => {
                ["stores", "loads"].map(|what| format!("{what} to memory mapped by {name} ({methods})"))
            }
            None => [0, 1].map(|_| format!("{name} ({methods})")),
        }
    }

    fn wait_in_mode(
        &self,
        mode: CompletionMode,
        other: u32,
        _offset: usize,
        _bytes: u64,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        let awaited = Awaited { pe: Some(other), mode: Some(mode), ..Awaited::default() };
        let mut check = |waited| match waited > LONGEST_WAIT {
            true => Err(Error::Timeout { peer: other, what: "a put", waited, lost: Lost::default() }),
            false => Ok(()),
        };
        self.wait(awaited, &mut done, &mut check)
    }
}
