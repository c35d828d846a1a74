//! The macro that declares a header's fields, each by name, type and offset. Fields are big-endian.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A type that a header field can have.
pub trait Field: Sized {
    /// Reads a field at offset `at`.
    ///
    /// # Panics
    /// If `bytes` is too short.
    fn get(bytes: &[u8], at: usize) -> Self;
    /// Writes a field at offset `at`.
    ///
    /// # Panics
    /// If `bytes` is too short.
    fn put(self, bytes: &mut [u8], at: usize);
}

impl<const N: usize> Field for [u8; N] {
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(&bytes[at..at + N]);
        value
    }

    #[inline(always)]
    fn put(self, bytes: &mut [u8], at: usize) {
        bytes[at..at + N].copy_from_slice(&self);
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Field for $type {
            #[inline(always)]
            fn get(bytes: &[u8], at: usize) -> Self {
                Self::from_be_bytes(Field::get(bytes, at))
            }

            #[inline(always)]
            fn put(self, bytes: &mut [u8], at: usize) {
                self.to_be_bytes().put(bytes, at);
            }
        }
    )*};
}
numbers!(u8, u16, u32, u64);

impl Field for Ipv4Addr {
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> Self {
        <[u8; 4]>::get(bytes, at).into()
    }

    #[inline(always)]
    fn put(self, bytes: &mut [u8], at: usize) {
        self.octets().put(bytes, at);
    }
}

impl Field for Ipv6Addr {
    #[inline(always)]
    fn get(bytes: &[u8], at: usize) -> Self {
        <[u8; 16]>::get(bytes, at).into()
    }

    #[inline(always)]
    fn put(self, bytes: &mut [u8], at: usize) {
        self.octets().put(bytes, at);
    }
}

/// Checks that `bytes` has at least `needed` bytes.
///
/// # Errors
/// [`crate::Error::Truncated`] with the header's name if it has fewer.
#[inline(always)]
pub fn require(header: &'static str, bytes: &[u8], needed: usize) -> crate::Result<()> {
    if bytes.len() < needed {
        return Err(crate::Error::Truncated { header, needed, present: bytes.len() });
    }
    Ok(())
}

/// Declares a header view: `Name("name in errors", bytes of the fixed part) { reader / writer: type = offset,
/// ... }`.
///
/// With `check = function`, `new` first checks the length of the fixed part, then calls `function`.
macro_rules! view {
    (
        $(#[$meta:meta])*
        $name:ident($label:literal, $length:literal) $(check = $check:ident)? {
            $($(#[$doc:meta])* $get:ident $(/ $set:ident)?: $type:ty = $at:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<T>(T);

        impl<T: AsRef<[u8]>> $name<T> {
            /// Creates a view of `buffer`, which must begin with this header.
            ///
            /// # Errors
            /// [`crate::Error::Truncated`] if the buffer ends within the header, [`crate::Error::Malformed`]
            /// if a field has an impossible value.
            #[inline]
            pub fn new(buffer: T) -> $crate::Result<Self> {
                $crate::view::require($label, buffer.as_ref(), $length)?;
                $($check(buffer.as_ref())?;)?
                Ok(Self(buffer))
            }

            /// Returns the buffer.
            pub fn into_inner(self) -> T {
                self.0
            }

            /// Returns the whole buffer, header and payload.
            #[inline(always)]
            pub fn bytes(&self) -> &[u8] {
                self.0.as_ref()
            }

            $(
                $(#[$doc])*
                #[inline(always)]
                pub fn $get(&self) -> $type {
                    <$type as $crate::view::Field>::get(self.0.as_ref(), $at)
                }
            )*
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $name<T> {
            $($(
                #[doc = concat!("Sets [`", stringify!($name), "::", stringify!($get), "`].")]
                #[inline(always)]
                pub fn $set(&mut self, value: $type) {
                    <$type as $crate::view::Field>::put(value, self.0.as_mut(), $at);
                }
            )?)*
        }
    };
}
