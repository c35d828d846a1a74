//! Functions that change the root directory.

use crate::{control, real};
use libc::{c_char, c_int};

hooks! {
    fn chroot(path: *const c_char) -> c_int {
        // Connect to the engine now, because the control socket may have no path below the new root.
        control::keep();
        real::chroot(path)
    }
}
