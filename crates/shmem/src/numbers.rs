//! The arithmetic of reductions: combines two arrays of one number type element by element.

/// A function `(accumulator, other, count)` that combines two arrays of `count` elements, element by element.
/// It stores the results in the accumulator.
pub type Combine = unsafe fn(*mut u8, *const u8, usize);

/// C's `long double`. Only C code computes with it.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

/// C's `float _Complex` and `double _Complex`, and C++'s `std::complex`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Complex<T> {
    real: T,
    imaginary: T,
}

/// Types with bitwise operations.
pub trait Logic {
    /// Bitwise and.
    const AND: Combine;
    /// Bitwise or.
    const OR: Combine;
    /// Bitwise exclusive or.
    const XOR: Combine;
}

/// Types with an order.
pub trait Ordered {
    /// The larger value.
    const MAX: Combine;
    /// The smaller value.
    const MIN: Combine;
}

/// The element types that reductions can add and multiply.
pub trait Sum {
    /// The sum. Integers wrap.
    const SUM: Combine;
    /// The product. Integers wrap.
    const PROD: Combine;
}

/// Combines each element of `left` with the element of `right` at the same index. Stores the results in
/// `left`.
unsafe fn each<T: Copy>(left: *mut u8, right: *const u8, count: usize, combine: impl Fn(T, T) -> T) {
    let (left, right) = (left.cast::<T>(), right.cast::<T>());
    for i in 0..count {
        // SAFETY: the caller passes two arrays of `count` elements.
        unsafe {
            let value = combine(left.add(i).read_unaligned(), right.add(i).read_unaligned());
            left.add(i).write_unaligned(value);
        }
    }
}

macro_rules! combine {
    ($type:ty, $combine:expr) => {{
        unsafe fn all(left: *mut u8, right: *const u8, count: usize) {
            // SAFETY: the caller passes two arrays of `count` elements of this type.
            unsafe { each::<$type>(left, right, count, $combine) }
        }
        all
    }};
}

macro_rules! ordered {
    ($($type:ty)*) => {
        $(impl Ordered for $type {
            const MAX: Combine = combine!($type, |a, b| if b > a { b } else { a });
            const MIN: Combine = combine!($type, |a, b| if b < a { b } else { a });
        })*
    };
}
ordered!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize f32 f64);

macro_rules! integers {
    ($($type:ty)*) => {
        $(
            impl Logic for $type {
                const AND: Combine = combine!($type, |a, b| a & b);
                const OR: Combine = combine!($type, |a, b| a | b);
                const XOR: Combine = combine!($type, |a, b| a ^ b);
            }
            impl Sum for $type {
                const SUM: Combine = combine!($type, <$type>::wrapping_add);
                const PROD: Combine = combine!($type, <$type>::wrapping_mul);
            }
        )*
    };
}
integers!(i8 i16 i32 i64 isize u8 u16 u32 u64 usize);

macro_rules! reals {
    ($($type:ty)*) => {
        $(
            impl Sum for $type {
                const SUM: Combine = combine!($type, |a, b| a + b);
                const PROD: Combine = combine!($type, |a, b| a * b);
            }
            impl Sum for Complex<$type> {
                const SUM: Combine = combine!(Complex<$type>, |a, b| Complex {
                    real: a.real + b.real,
                    imaginary: a.imaginary + b.imaginary,
                });
                const PROD: Combine = combine!(Complex<$type>, |a, b| Complex {
                    real: a.real * b.real - a.imaginary * b.imaginary,
                    imaginary: a.real * b.imaginary + a.imaginary * b.real,
                });
            }
        )*
    };
}
reals!(f32 f64);

unsafe extern "C" {
    fn inlane_longdouble_sum(left: *mut u8, right: *const u8, count: usize);
    fn inlane_longdouble_prod(left: *mut u8, right: *const u8, count: usize);
    fn inlane_longdouble_max(left: *mut u8, right: *const u8, count: usize);
    fn inlane_longdouble_min(left: *mut u8, right: *const u8, count: usize);
}

macro_rules! in_c {
    ($function:ident) => {{
        unsafe fn all(left: *mut u8, right: *const u8, count: usize) {
            // SAFETY: the caller passes two aligned arrays of `count` elements.
            unsafe { $function(left, right, count) }
        }
        all
    }};
}

impl Ordered for LongDouble {
    const MAX: Combine = in_c!(inlane_longdouble_max);
    const MIN: Combine = in_c!(inlane_longdouble_min);
}

impl Sum for LongDouble {
    const SUM: Combine = in_c!(inlane_longdouble_sum);
    const PROD: Combine = in_c!(inlane_longdouble_prod);
}
