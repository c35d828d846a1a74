//! Bindings to DPDK's C interface and to the C files of this directory. mbufs, mempools and devices are
//! opaque in Rust; C code reads and writes their fields.

#[expect(
    non_camel_case_types,
    non_snake_case,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    reason = "generated from DPDK's headers"
)]
#[allow(
    dead_code,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unnecessary_transmutes,
    reason = "some constants are of one DPDK release only"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
pub(crate) use bindings::*;

use inlane_core::packet::{Packet, PacketMeta};

// C code accesses packets and their metadata. So sizes and offsets must be equal in Rust and C.
const _: () = {
    assert!(
        size_of::<Packet>() == size_of::<inlane_packet>()
            && align_of::<Packet>() == align_of::<inlane_packet>()
    );
    assert!(std::mem::offset_of!(Packet, address) == std::mem::offset_of!(inlane_packet, address));
    assert!(std::mem::offset_of!(Packet, length) == std::mem::offset_of!(inlane_packet, length));
    assert!(std::mem::offset_of!(Packet, port) == std::mem::offset_of!(inlane_packet, port));
    assert!(std::mem::offset_of!(Packet, cookie) == std::mem::offset_of!(inlane_packet, cookie));
    assert!(
        size_of::<PacketMeta>() == size_of::<inlane_packet_meta>()
            && align_of::<PacketMeta>() == align_of::<inlane_packet_meta>()
    );
    assert!(size_of::<PacketMeta>() <= INLANE_PRIVATE_BYTES as usize);
};

/// Returns DPDK's text for an error number. `code` may be negative.
pub(crate) fn error_text(code: i32) -> String {
    // SAFETY: rte_strerror returns a constant, or a string in this thread's memory.
    let text = unsafe { std::ffi::CStr::from_ptr(rte_strerror(code.abs())) };
    text.to_string_lossy().into_owned()
}

/// Returns the error number of this thread's most recent DPDK call that failed.
pub(crate) fn last_error() -> i32 {
    // SAFETY: reads a thread-local integer.
    unsafe { inlane_errno() }
}
