//! What a GPU's link carries, by the GPU's own counter: NVML's throughput over windows of 20 ms, sampled on a thread.

use crate::device::Gpu;
use crate::error::{Error, Result};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes a second in each window.
#[derive(Clone, Debug, Default)]
pub struct LinkSamples {
    /// Into the GPU.
    pub received: Vec<f64>,
    /// Out of it.
    pub sent: Vec<f64>,
}

/// Samples until it is stopped or dropped.
pub struct LinkMeter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<LinkSamples>>,
}

impl LinkMeter {
    /// Starts to sample.
    ///
    /// # Errors
    /// When the management library is missing, or does not tell.
    pub fn start(gpu: &Gpu) -> Result<Self> {
        let failed = |error: nvml_wrapper::error::NvmlError| {
            let why = format!("NVML does not tell what it carries: {error}");
            Error::invalid(format!("the link of {gpu}"), why)
        };
        let nvml = Nvml::init().map_err(failed)?;
        let address = gpu.info().pci_address.clone();
        let device = nvml.device_by_pci_bus_id(address.as_str()).map_err(failed)?;
        device.pcie_throughput(PcieUtilCounter::Receive).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sample = move || {
            let mut samples = LinkSamples::default();
            // Asked for anew: it borrows from the library, which this thread owns.
            let Ok(device) = nvml.device_by_pci_bus_id(address.as_str()) else { return samples };
            while !stopped.load(Ordering::Relaxed) {
                // In KB a second; each call takes its window.
                let [received, sent] = [PcieUtilCounter::Receive, PcieUtilCounter::Send]
                    .map(|counter| device.pcie_throughput(counter).ok().map(|rate| rate as f64 * 1e3));
                samples.received.extend(received);
                samples.sent.extend(sent);
            }
            samples
        };
        let thread = std::thread::Builder::new()
            .name("inlane-link".into())
            .spawn(sample)
            .map_err(|error| Error::invalid("a thread that samples", error.to_string()))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// What was seen; the first and the last window, which hold more than what ran between, are left out.
    pub fn stop(mut self) -> LinkSamples {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("taken once, here or in drop");
        let mut samples = thread.join().unwrap_or_default();
        for windows in [&mut samples.received, &mut samples.sent] {
            windows.pop();
            windows.drain(..windows.len().min(1));
        }
        samples
    }
}

impl Drop for LinkMeter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
