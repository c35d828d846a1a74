//! The structs that Rust and compiled packet functions share: those of `include/inlane_run.h` and
//! `include/inlane_block.h`.
//!
//! Whenever a function is compiled, [`layout_assertions`] makes the compiler check every field's offset and
//! size.

use inlane_core::ring::layout::PacketVerdict;
use inlane_core::struct_layout;

/// The version of these structs. A module that was compiled against another version is refused.
pub const ABI: u32 = 1;

/// The value of [`FunctionInfo::reads`] and [`FunctionInfo::writes`] if a function may access every byte of a
/// packet.
pub const WHOLE_PACKET: u32 = u32::MAX;

/// The unit for which an executor calls a function: a packet or a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// One thread calls the function once per packet.
    Packet,
    /// All threads of a block together call the function once per burst.
    Burst,
}

/// The properties of a packet function. The compiled module exports them as `inlane_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionInfo {
    /// The version of this struct: [`ABI`].
    pub abi: u32,
    /// 0 if the function is called per packet, 1 if per burst. See [`FunctionInfo::kind`].
    pub kind: u32,
    /// The size of a pipeline's state in bytes. The executor zeroes the state and aligns it to 128 bytes.
    pub state_bytes: u64,
    /// The size of a pipeline's output region in bytes, 0 for none. The executor zeroes it.
    pub output_bytes: u64,
    /// The number of bytes at a packet's front that the function may read, or [`WHOLE_PACKET`].
    pub reads: u32,
    /// The bytes at a packet's front that the function may write, or [`WHOLE_PACKET`]. 0 for none.
    pub writes: u32,
    /// Bit 0: the function has a `tick`, see [`FunctionInfo::ticks`]. Bit 1: it reads the time, see
    /// [`FunctionInfo::needs_time`].
    pub time: u32,
    /// The number of 64-bit parameters of the function. The command line sets them, and the function's state
    /// begins with them.
    pub parameters: u32,
}

impl FunctionInfo {
    /// Returns whether the function is called per packet or per burst.
    pub fn kind(&self) -> CallKind {
        if self.kind == 0 { CallKind::Packet } else { CallKind::Burst }
    }

    /// Returns true if the function has a `tick`. Executors must call it while no packets arrive.
    pub fn ticks(&self) -> bool {
        self.time & 1 != 0
    }

    /// Returns true if the function reads the time or has a `tick`. For others, the time may be 0.
    pub fn needs_time(&self) -> bool {
        self.time != 0
    }

    /// Reads a `FunctionInfo` from the bytes of a compiled module's `inlane_info`. Returns `None` if length,
    /// [`ABI`] version or kind is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != size_of::<Self>() {
            return None;
        }
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

/// Where the counters of one member lie in a function's state. A compiled module exports one for each
/// `INLANE_COUNTER` of the source. C++ calls this struct `inlane_counter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterPlace {
    /// The member's offset in the state, in bytes.
    pub offset: u64,
    /// The size of the member in bytes.
    pub bytes: u32,
    /// The size of one counter in bytes, 4 or 8. The member is a counter or an array of counters.
    pub each: u32,
}

impl CounterPlace {
    /// Reads a `CounterPlace` from the bytes of a compiled module's `inlane_counter`. Returns `None` if the length or the
    /// size of a counter is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 16] = bytes.try_into().ok()?;
        let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let offset = u64::from_ne_bytes(bytes[..8].try_into().ok()?);
        let place = Self { offset, bytes: half(8), each: half(12) };
        matches!(place.each, 4 | 8).then_some(place)
    }
}

/// The arguments that a function gets besides its packets. C++ calls this struct `inlane_context`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallContext {
    /// The address of the function's state, valid on the processor that executes the function.
    pub state: u64,
    /// The address of the output region, or 0 if there is none.
    pub output: u64,
    /// The length of the output region in bytes.
    pub output_bytes: u64,
    /// The time of the burst in nanoseconds, from a monotonic clock.
    pub now_ns: u64,
    /// The greatest length to which a packet may grow, in bytes. 0 if packets must not grow.
    pub room: u32,
    /// Unused; 0.
    pub reserved: u32,
}

/// A function that was compiled for the CPU. C++ calls this struct `inlane_entry`.
#[repr(C)]
pub struct FunctionEntry {
    /// The function's properties.
    pub info: FunctionInfo,
    /// Runs the function on packets. Arguments:
    /// 1. the first `inlane_descriptor`
    /// 2. the bytes from one descriptor to the next, 16 or 24
    /// 3. the number of packets
    /// 4. where to write verdicts
    /// 5. the context
    pub run: unsafe extern "C" fn(*const u8, u32, u32, *mut PacketVerdict, *const CallContext) -> u32,
    /// Calls the function's `tick`.
    pub tick: unsafe extern "C" fn(*const CallContext),
}

/// Returns C++ assertions of the layouts of the structs in this module. Append this text after `inlane.h`.
pub fn layout_assertions() -> String {
    let info = struct_layout!(FunctionInfo as "inlane_info" {
        abi, kind, state_bytes, output_bytes, reads, writes, time, parameters
    });
    let context = struct_layout!(CallContext as "inlane_context" { state, output, output_bytes, now_ns, room, reserved });
    let entry = struct_layout!(FunctionEntry as "inlane_entry" { info, run, tick });
    let counter = struct_layout!(CounterPlace as "inlane_counter" { offset, bytes, each });
    format!("{info}{context}{counter}#if !INLANE_GPU\n{entry}#endif\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_converted_from_bytes() {
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
        // SAFETY: the struct is plain data. Its fields add up to its 40 bytes, so it has no padding.
        let bytes: [u8; 40] = unsafe { std::mem::transmute(info) };
        assert_eq!(FunctionInfo::from_bytes(&bytes), Some(info));
        assert_eq!(FunctionInfo::from_bytes(&bytes[..39]), None, "too short");
        assert_eq!(FunctionInfo::from_bytes(&[&bytes[..], &[0]].concat()), None, "too long");
        assert_eq!(FunctionInfo::from_bytes(&[0; 40]), None, "another ABI version");
    }

    #[test]
    fn places_of_counters_are_converted_from_bytes() {
        let place = CounterPlace { offset: 40, bytes: 24, each: 8 };
        // SAFETY: the struct is plain data. Its fields add up to its 16 bytes, so it has no padding.
        let bytes: [u8; 16] = unsafe { std::mem::transmute(place) };
        assert_eq!(CounterPlace::from_bytes(&bytes), Some(place));
        assert_eq!(CounterPlace::from_bytes(&bytes[..15]), None, "too short");
        assert_eq!(CounterPlace::from_bytes(&[0; 16]), None, "a counter of no bytes");
    }

    #[test]
    fn layout_assertions_name_every_field() {
        let text = layout_assertions();
        assert!(text.contains(
            "INLANE_OFFSETOF(inlane_info, parameters) == 36 && sizeof(inlane_info::parameters) == 4"
        ));
        assert!(text.contains(
            "INLANE_OFFSETOF(inlane_context, now_ns) == 24 && sizeof(inlane_context::now_ns) == 8"
        ));
        assert!(text.contains("INLANE_OFFSETOF(inlane_entry, run) == 40 && sizeof(inlane_entry::run) == 8"));
    }
}
