//! A macro that declares the specification's data structures as Rust types. These types have the same bytes
//! as on the wire.

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
