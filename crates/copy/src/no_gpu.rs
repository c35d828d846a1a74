//! Replaces the module `gpu` in builds without the feature `cuda`. No GPU can be opened in such a build.
//!
//! The types here have no values. Because they exist, the rest of the crate can name GPUs without conditional
//! compilation.

use inlane_core::mover::Mover;
use inlane_core::{Error, Region, Result};
use std::sync::Arc;

/// A GPU of this machine. No value of this type exists, because this build cannot open a GPU.
#[derive(Debug)]
pub enum Gpu {}

/// The memory of an opened GPU. This build cannot open one.
#[derive(Debug)]
pub enum GpuMemory {}

impl Gpu {
    pub(crate) fn index(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn pinned(&self, _: usize) -> Result<Region> {
        match *self {}
    }
}

impl GpuMemory {
    /// Fails because this build has no support for GPUs.
    ///
    /// # Errors
    /// [`Error::Device`], always.
    pub fn open(index: u32) -> Result<Self> {
        let why = "this program was built without the cargo feature cuda; build it with --features cuda";
        Err(Error::device_environment(format!("gpu:{index}"), why))
    }

    pub(crate) fn gpu(&self) -> &Arc<Gpu> {
        match *self {}
    }

    pub(crate) fn name(&self) -> String {
        match *self {}
    }

    pub(crate) fn link(&self) -> Option<(String, f64)> {
        match *self {}
    }

    pub(crate) fn capacity(&self) -> usize {
        match *self {}
    }

    pub(crate) fn allocate(&self, _: usize) -> Result<Region> {
        match *self {}
    }

    pub(crate) fn fill(&self, _: &Region, _: u64) -> Result<()> {
        match *self {}
    }

    pub(crate) fn poison(&self, _: &Region, _: u8) -> Result<()> {
        match *self {}
    }

    pub(crate) fn count_wrong(&self, _: &Region, _: u64) -> Result<u64> {
        match *self {}
    }
}

pub(crate) fn copy_engine(gpu: &GpuMemory) -> Result<Box<dyn Mover>> {
    match *gpu {}
}

pub(crate) fn pci_address(gpu: &Gpu) -> String {
    match *gpu {}
}

/// Returns true, because this build finds no GPU.
pub(crate) fn none_found() -> bool {
    true
}

/// Returns false, because this build cannot use a GPU and therefore cannot abandon one.
pub(crate) fn any_abandoned() -> bool {
    false
}

/// Returns `None`: this build does not load the CUDA driver.
pub(crate) fn driver_version() -> Option<String> {
    None
}
