//! What Rust and the compiled functions share: the structs of `include/inlane_run.h` and `inlane_block.h`.

use inlane_core::ring::layout::PacketVerdict;
use std::mem::{offset_of, size_of};

/// The version of these structs; a module of another version is refused.
pub const ABI: u32 = 1;

/// [`FunctionInfo::reads`] and [`FunctionInfo::writes`] of a function that may touch every byte.
pub const WHOLE_PACKET: u32 = u32::MAX;

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Once a packet, by one thread.
    Packet,
    /// Once a burst, by all threads of a block together.
    Burst,
}

/// What the host must know of a function: `inlane_info`, as the compiled module holds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionInfo {
    /// [`ABI`].
    pub abi: u32,
    /// 0 per packet, 1 per burst; see [`FunctionInfo::kind`].
    pub kind: u32,
    /// Bytes of zeroed state a pipeline, aligned to 128.
    pub state_bytes: u64,
    /// Bytes of zeroed output region a pipeline; 0 for none.
    pub output_bytes: u64,
    /// Most bytes at a packet's front that it reads; [`WHOLE_PACKET`] for all.
    pub reads: u32,
    /// Most bytes at a packet's front that it writes; [`WHOLE_PACKET`] for all, 0 for a function that leaves packets alone.
    pub writes: u32,
    /// Bits: 1 wants to be called without packets, too ([`FunctionInfo::ticks`]); 2 looks at the time ([`FunctionInfo::needs_time`]).
    pub time: u32,
    /// So many 64-bit numbers at the beginning of its state are set from the command line.
    pub parameters: u32,
}

impl FunctionInfo {
    /// How it is called.
    pub fn kind(&self) -> CallKind {
        if self.kind == 0 { CallKind::Packet } else { CallKind::Burst }
    }

    /// It wants to be called without packets, too, for time limits.
    pub fn ticks(&self) -> bool {
        self.time & 1 != 0
    }

    /// It looks at the time of its packets; others may be given 0.
    pub fn needs_time(&self) -> bool {
        self.time != 0
    }

    /// Reads it as it lies in a module's memory; `None` for too few bytes or another [`ABI`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let whole = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let info = Self {
            abi: half(0)?,
            kind: half(4)?,
            state_bytes: whole(8)?,
            output_bytes: whole(16)?,
            reads: half(24)?,
            writes: half(28)?,
            time: half(32)?,
            parameters: half(36)?,
        };
        (info.abi == ABI && info.kind <= 1).then_some(info)
    }
}

/// What a call gets beside the packets: `inlane_context`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallContext {
    /// The function's state, as the executor addresses it.
    pub state: u64,
    /// Its output region; 0 for none.
    pub output: u64,
    /// Bytes of the output region.
    pub output_bytes: u64,
    /// Time of the burst in nanoseconds, monotonic.
    pub now_ns: u64,
    /// Bytes that a packet may have from its address on; 0: no longer than it is.
    pub room: u32,
    /// Zero.
    pub reserved: u32,
}

/// A function compiled for the CPU: `inlane_entry`.
#[repr(C)]
pub struct FunctionEntry {
    /// What the host must know.
    pub info: FunctionInfo,
    /// Runs it on `count` packets, an `inlane_descriptor` every `stride` (16 or 24) bytes.
    pub run: unsafe extern "C" fn(*const u8, u32, u32, *mut PacketVerdict, *const CallContext) -> u32,
    /// Calls its `tick`.
    pub tick: unsafe extern "C" fn(*const CallContext),
}

const _: () = {
    assert!(
        size_of::<FunctionInfo>() == 40
            && offset_of!(FunctionInfo, reads) == 24
            && offset_of!(FunctionInfo, parameters) == 36
    );
    assert!(size_of::<CallContext>() == 40 && offset_of!(CallContext, now_ns) == 24);
    assert!(offset_of!(FunctionEntry, run) == 40);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_as_it_lies() {
        let info = FunctionInfo {
            abi: ABI,
            kind: 1,
            state_bytes: 7,
            output_bytes: 9,
            reads: 1,
            writes: 2,
            time: 1,
            parameters: 3,
        };
        // SAFETY: a plain struct without padding, 40 bytes (asserted above).
        let bytes: [u8; 40] = unsafe { std::mem::transmute(info) };
        assert_eq!(FunctionInfo::from_bytes(&bytes), Some(info));
        assert_eq!(FunctionInfo::from_bytes(&bytes[..39]), None);
        assert_eq!(FunctionInfo::from_bytes(&[0; 40]), None, "another ABI");
    }
}
