//! Generates C++ assertions. They check that structs shared with C++ have the same layout as in Rust.

/// C++ text that defines `INLANE_OFFSETOF`. The assertions of [`struct_layout`](crate::struct_layout) need
/// it, because NVRTC has neither `offsetof` nor `__builtin_offsetof`.
pub const OFFSETOF: &str = "\
#ifndef INLANE_OFFSETOF
#if defined(__CUDACC_RTC__)
#define INLANE_OFFSETOF(type, member) __INTADDR__(&(static_cast<type *>(nullptr))->member)
#else
#define INLANE_OFFSETOF(type, member) __builtin_offsetof(type, member)
#endif
#endif
";

/// Returns the size in bytes of the field that `_field` selects.
#[doc(hidden)]
pub const fn size_of_field<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Returns C++ text with assertions about a shared struct: its size, and the offset and size of each field.
///
/// Write `struct_layout!(RustStruct as "c_struct" { field, field as "c_name", ... })`, with every field. With
/// `as beginning of "c_struct"`, the Rust struct may have only the first fields of the C struct. The size is
/// then not asserted.
#[macro_export]
macro_rules! struct_layout {
    ($rust:ident as $c:literal $fields:tt) => {{
        let size = format!("static_assert(sizeof({}) == {}, \"Rust's {}\");\n", $c, size_of::<$rust>(), $c);
        size + &$crate::struct_layout!($rust as beginning of $c $fields)
    }};
    ($rust:ident as beginning of $c:literal { $($field:ident $(as $c_field:literal)?),* $(,)? }) => {{
        #[allow(dead_code, reason = "checks at compile time that every field is listed")]
        fn lists_every_field($rust { $($field: _),* }: &$rust) {}
        let mut text = String::new();
        $({
            let name: &str = [$($c_field,)? stringify!($field)][0];
            let size = $crate::layout::size_of_field(|value: &$rust| &value.$field);
            text += &format!(
                "static_assert(INLANE_OFFSETOF({0}, {1}) == {2} && sizeof({0}::{1}) == {3}, \"Rust's {0}.{1}\");\n",
                $c, name, std::mem::offset_of!($rust, $field), size
            );
        })*
        text
    }};
}
