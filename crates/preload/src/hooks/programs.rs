//! Functions that start programs. The started program gets the preloaded library.

use crate::{direct, exec, real};
use libc::{c_char, c_int, c_long, c_void, pid_t};

unsafe extern "C" {
    /// The program's environment. Null after clearenv(3).
    static environ: *const *const c_char;
}

hooks! {
    fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        real::execve(path, arguments, exec::environment(environment, &mut room))
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        execve(path, arguments, environ)
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        execvpe(file, arguments, environ)
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        real::execvpe(file, arguments, exec::environment(environment, &mut room))
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        real::fexecve(fd, arguments, exec::environment(environment, &mut room))
    }

    // Older versions of the C libraries lack this function, so make the system call.
    fn execveat(folder: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        let environment = exec::environment(environment, &mut room);
        real::syscall(libc::SYS_execveat, folder.into(), path as c_long, arguments as c_long, environment as c_long, flags.into(), 0) as c_int
    }

    fn posix_spawn(process: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        let environment = exec::environment(environment, &mut room);
        real::posix_spawn(process, path, actions, attributes, arguments, environment)
    }

    fn posix_spawnp(process: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
        direct::note_all_shared();
        let mut room = exec::EMPTY;
        let environment = exec::environment(environment, &mut room);
        real::posix_spawnp(process, file, actions, attributes, arguments, environment)
    }

    // The C library starts the shell without the functions above.
    fn system(command: *const c_char) -> c_int {
        direct::note_all_shared();
        real::system(command)
    }

    fn popen(command: *const c_char, mode: *const c_char) -> isize {
        direct::note_all_shared();
        real::popen(command, mode)
    }
}
