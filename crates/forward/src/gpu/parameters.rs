//! The parameters of a lane's kernels.

/// The parameter of a lane's kernels, passed by value. `inlane_lane` in `kernels/executor.cu` has the same
/// layout and documents the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneParameters {
    pub(super) submit: u64,
    pub(super) complete: u64,
    pub(super) control: u64,
    pub(super) stage: u64,
    pub(super) shadow: u64,
    pub(super) state: u64,
    pub(super) output: u64,
    pub(super) relay: u64,
    pub(super) output_bytes: u64,
    pub(super) orphan_ns: u64,
    pub(super) submit_stride: u32,
    pub(super) complete_stride: u32,
    pub(super) slot_shift: u32,
    pub(super) burst: u32,
    pub(super) room: u32,
    pub(super) pull: u32,
    pub(super) stage_stride: u32,
    pub(super) shadow_stride: u32,
    pub(super) writes: u32,
    pub(super) pause_ns: u32,
    pub(super) work_ns: u32,
    pub(super) reserved: u32,
}

impl LaneParameters {
    /// Returns C++ assertions that `inlane_lane` has this struct's layout. Append the text to the kernels'
    /// source.
    pub(super) fn layout_assertions() -> String {
        inlane_core::struct_layout!(LaneParameters as "inlane_lane" {
            submit, complete, control, stage, shadow, state, output, relay, output_bytes, orphan_ns, submit_stride,
            complete_stride, slot_shift, burst, room, pull, stage_stride, shadow_stride, writes, pause_ns, work_ns, reserved
        })
    }
}

/// Returns the bytes per packet of the buffers `stage` and `shadow` of [`LaneParameters`], in this order. 0
/// means that the buffer does not exist. Packets are copied in aligned 16-byte chunks. An unaligned packet
/// may therefore need one more chunk.
pub(super) fn strides(pull: u32, room: u32, writes: u32) -> [u32; 2] {
    let chunks = |bytes: u32| (bytes + 15).next_multiple_of(16);
    match (pull, writes) {
        (0, _) => [0, 0],
        (_, 0) => [chunks(room.min(pull)).next_multiple_of(128), 0],
        _ => [chunks(room.min(pull)).next_multiple_of(128), chunks(writes.min(room))],
    }
}
