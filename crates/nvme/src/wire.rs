//! What host and controller send each other: commands, data structures, protocol data units and names.
//!
//! The types have the same bytes in memory as on the wire. Nothing here does I/O.

/// Declares structs whose memory layout is the wire format.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$doc])* pub $field: $type),* }
    )*};
}

pub mod command;
pub mod identify;
pub mod nqn;
pub mod pdu;
