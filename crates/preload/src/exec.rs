//! Adds variables to the environment that a program passes to exec. They preload this library into the
//! started program. Otherwise that program would use the kernel's sockets.

use crate::settings;
use libc::c_char;

/// The most variables of an environment, including the variables that this library adds. Longer environments
/// are passed on unchanged.
const MOST: usize = 1024;

/// An array for an environment: pointers to its variables, then null.
pub type Room = [*const c_char; MOST + 1];

/// An empty array for an environment. The caller copies it to its own stack, because a child of vfork must
/// not allocate memory.
pub const EMPTY: Room = [std::ptr::null(); MOST + 1];

/// Returns the environment for a program that starts with the environment `given`. Adds the variables that
/// load this library. If `given` already has a list of preloaded libraries, returns it unchanged.
///
/// # Safety
/// `given` is null or an array of terminated strings that ends with null.
pub unsafe fn environment(given: *const *const c_char, room: &mut Room) -> *const *const c_char {
    let exported = settings::exported();
    if exported[0].is_null() {
        return given;
    }
    let mut count = 0;
    // SAFETY: the array ends with null, and each entry is a terminated string.
    unsafe {
        // Like the kernel, treat a null pointer as an empty environment.
        while !given.is_null() && !(*given.add(count)).is_null() {
            let entry = *given.add(count);
            if count + exported.len() >= MOST || libc::strncmp(entry, c"LD_PRELOAD=".as_ptr(), 11) == 0 {
                return given;
            }
            room[count] = entry;
            count += 1;
        }
        for variable in exported.into_iter().filter(|variable| !variable.is_null()) {
            let name = libc::strchr(variable, i32::from(b'=')).offset_from(variable) as usize + 1;
            let known = room[..count].iter().any(|&entry| libc::strncmp(entry, variable, name) == 0);
            if !known {
                room[count] = variable;
                count += 1;
            }
        }
    }
    room[count] = std::ptr::null();
    room.as_ptr()
}
