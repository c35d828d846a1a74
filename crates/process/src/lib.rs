//! The process and its threads on this machine.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cgroup`] | the control groups of this process, and their quota of processor time |
//! | [`limits`] | limits of this process's resources, and the memory of the machine |
//! | [`thread_time`] | how long the threads of this process have waited for a processor |
//! | [`ticks`] | how the kernel has counted the time of processors |
//! | [`interference`] | other processes that delay a measurement |
//! | [`privileges`] | the user that this process runs as, and how it gives up its capabilities |
//! | [`program`] | programs that this process starts |
//! | [`code_cache`] | compiled code on disk |

pub mod cgroup;
pub mod code_cache;
pub mod interference;
pub mod limits;
pub mod privileges;
pub mod program;
pub mod thread_time;
pub mod ticks;
