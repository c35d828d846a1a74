//! OpenSHMEM 1.5 in C over inlane's transports: this library and its header `include/shmem.h`.
//!
//! `functions.txt` lists every function once: its types, its C prototype, and the Rust expression that
//! implements it. From this table come
//!
//! ```text
//! functions.txt -- build script --> exported functions: shmem_* and the profiling names pshmem_*
//!               -- test `header` -> include/inlane/: prototypes, C11 generics, C++ overloads (checked in)
//! ```
//!
//! The typed functions compute a length and call one of a few functions on bytes. For example,
//! `shmem_long_put` is a multiplication and a jump.
//!
//! As in the specification, most functions return no error. If one fails, the library prints the error and
//! ends the job. Rust has no type `long double`, so functions with such arguments or results are C
//! (`longdouble.c`).

mod amo;
mod collectives;
mod contexts;
mod locks;
mod memory;
mod numbers;
mod rma;
mod setup;
mod statics;
mod teams;
mod threads;
mod waits;
mod world;

/// The exported functions, made from `functions.txt`. Each function's contract is the specification's.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]
#[allow(missing_docs, non_snake_case, unused_variables, unused_unsafe)]
mod exports {
    use crate::amo::Word as _;
    use crate::collectives::{ActiveSet, elements};
    use crate::contexts::{Context, SessionConfig};
    use crate::numbers::{Complex, Logic as _, LongDouble, Ordered, Sum as _};
    use crate::rma::bytes;
    use crate::teams::{Team, TeamConfig};
    use crate::waits::{NOT_EQUAL, Operands};
    use crate::{amo, collectives, contexts, locks, memory, rma, setup, teams, waits, world};
    use inlane_pgas::transport::Operation::{Add, And, CompareSwap, Fetch, Or, Swap, Xor};
    use std::ffi::{c_int, c_void};

    /// Jumps to a C function. Registers and stack stay as the caller has set them.
    macro_rules! jump {
        ($target:ident) => {{
            unsafe extern "C" {
                fn $target();
            }
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("jmp {}", sym $target);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("b {}", sym $target);
        }};
    }

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}
