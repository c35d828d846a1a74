//! What this crate does on GPUs: kernels, movers by SMs, staging through the host by copy engines and by SMs.

pub(crate) mod kernels;
mod memory;
pub(crate) mod sm_copy;
pub mod staged;
pub mod staged_sm;
mod trace;
mod tuning;

pub use memory::GpuMemory;
