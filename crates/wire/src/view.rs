//! How a header's fields are declared: a name, a type and an offset each, big-endian as networks have them.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A value that stands in a header at some offset.
pub trait Field: Sized {
    /// Reads it; `bytes` is long enough.
    fn get(bytes: &[u8], at: usize) -> Self;
    /// Writes it; `bytes` is long enough.
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

/// Fails unless `bytes` holds `needed`.
#[inline(always)]
pub fn require(header: &'static str, bytes: &[u8], needed: usize) -> crate::Result<()> {
    if bytes.len() < needed {
        return Err(crate::Error::Truncated { header, needed, present: bytes.len() });
    }
    Ok(())
}

/// Declares a view: `Name("what errors call it", bytes of its fixed part) { reader / writer: type @ offset, ... }`.
///
/// The checks of `new` beyond the fixed part come with `check = function`.
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
            /// A view of `buffer`, which begins with this header.
            ///
            /// # Errors
            /// [`crate::Error::Truncated`] when the header is not all there, [`crate::Error::Malformed`] when it contradicts
            /// itself.
            #[inline]
            pub fn new(buffer: T) -> $crate::Result<Self> {
                $crate::view::require($label, buffer.as_ref(), $length)?;
                $($check(buffer.as_ref())?;)?
                Ok(Self(buffer))
            }

            /// The buffer back.
            pub fn into_inner(self) -> T {
                self.0
            }

            /// The whole buffer, header and what follows.
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
                #[doc = concat!("Writes [`", stringify!($name), "::", stringify!($get), "`].")]
                #[inline(always)]
                pub fn $set(&mut self, value: $type) {
                    <$type as $crate::view::Field>::put(value, self.0.as_mut(), $at);
                }
            )?)*
        }
    };
}
