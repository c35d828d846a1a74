//! Replaces the GPU executor in builds without the cargo feature `cuda`. A GPU cannot be opened, and no value
//! of these types can exist. So the compiler removes the code that uses them.

use super::{LaneReport, Memory, Settings};
use crate::error::Result;
use crate::pipeline::{Pipeline, PipelineContext, PipelineSettings, Tally};
use inlane_core::{Pool, Region};
use inlane_function::PacketFunction;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A GPU. No value exists, because this build cannot open a GPU.
pub enum Gpu {}

/// Refuses to open the GPU `index`.
///
/// # Errors
/// Always: names the cargo feature that is missing.
pub(crate) fn open(index: u32) -> Result<Arc<Gpu>> {
    let why = format!(
        "this program was built without the cargo feature cuda; build it with --features cuda, or use {}",
        crate::field::ON.with("cpu")
    );
    Err(inlane_core::Error::device_environment(format!("gpu:{index}"), why).into())
}

impl Gpu {
    pub(crate) fn allocate(&self, _bytes: usize) -> Result<Region> {
        match *self {}
    }

    pub(crate) fn pinned(&self, _bytes: usize) -> Result<Region> {
        match *self {}
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}

/// A packet function loaded on a GPU. No value exists, because this build cannot open a GPU.
pub enum LoadedFunction {}

impl LoadedFunction {
    pub(crate) fn new(gpu: &Arc<Gpu>, _: &PacketFunction, _: Memory) -> Result<Arc<Self>> {
        match **gpu {}
    }
}

/// One pipeline's share of a GPU.
pub enum Lane {}

impl Lane {
    pub(crate) fn new(
        function: &Arc<LoadedFunction>,
        _: &Settings,
        _: &PipelineSettings,
        _: &dyn Pool,
        _lanes: u32,
    ) -> Result<Self> {
        match **function {}
    }

    pub(crate) fn check_residence<'a>(_: impl IntoIterator<Item = &'a Lane>) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn run(
    _: Pipeline,
    lane: &mut Lane,
    _: &PipelineSettings,
    _: &PipelineContext<'_>,
) -> (Tally, Option<LaneReport>) {
    match *lane {}
}

/// The GPU's counters of its PCIe link.
pub(crate) enum LinkMeter {}

/// The samples of a PCIe link's counters: the bytes per second in each sampling interval.
pub(crate) struct LinkSamples {
    pub(crate) received: Vec<f64>,
    pub(crate) sent: Vec<f64>,
}

impl LinkMeter {
    pub(crate) fn start(gpu: &Gpu) -> inlane_core::Result<Self> {
        match *gpu {}
    }

    pub(crate) fn stop(self) -> LinkSamples {
        match self {}
    }
}

/// The competing job on a GPU. No value exists, because this build cannot open a GPU.
pub(crate) enum CompetingKernel {}

impl CompetingKernel {
    pub(crate) fn new(gpu: &Arc<Gpu>, _large: bool) -> Result<Self> {
        match **gpu {}
    }

    pub(crate) fn run(&self, _: &AtomicBool) -> Result<f64> {
        match *self {}
    }
}

impl fmt::Display for CompetingKernel {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {}
    }
}
