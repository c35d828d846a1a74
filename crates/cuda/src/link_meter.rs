//! Measures the traffic on a GPU's PCIe link with the GPU's own counters. NVML reports the average rate over
//! an interval of 20 ms.

use crate::device::Gpu;
use crate::error::{Error, Result};
use crate::field::MEASURE_PCIE;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::PcieUtilCounter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The samples of a GPU's PCIe traffic in both directions. Each sample is the average rate over 20 ms, in
/// bytes per second.
#[derive(Clone, Debug, Default)]
pub struct LinkSamples {
    /// Traffic to the GPU.
    pub received: Vec<f64>,
    /// Traffic from the GPU.
    pub sent: Vec<f64>,
}

/// A thread that samples the link until this value is stopped or dropped.
pub struct LinkMeter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<LinkSamples>>,
}

impl LinkMeter {
    /// Starts sampling.
    ///
    /// # Errors
    /// If NVML is missing or does not report the traffic.
    pub fn start(gpu: &Gpu) -> Result<Self> {
        let failed = |error: nvml_wrapper::error::NvmlError| {
            let why = format!("NVML does not report its traffic: {error}; run without {MEASURE_PCIE}");
            Error::invalid(format!("the PCIe link of {gpu}"), why)
        };
        let nvml = Nvml::init().map_err(failed)?;
        let address = gpu.info().pci_address.clone();
        let device = nvml.device_by_pci_bus_id(address.as_str()).map_err(failed)?;
        device.pcie_throughput(PcieUtilCounter::Receive).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let sample = move || {
            let mut samples = LinkSamples::default();
            // Look up the device again. The handle above borrows from `nvml`, which has moved to this thread.
            let Ok(device) = nvml.device_by_pci_bus_id(address.as_str()) else { return samples };
            while !stopped.load(Ordering::Relaxed) {
                // Each call blocks for one interval and returns kB per second.
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
            .map_err(|error| Error::invalid("the thread that samples a PCIe link", error.to_string()))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops sampling. Returns all samples except the first and the last one, because the time of these two
    /// may extend beyond the run.
    pub fn stop(mut self) -> LinkSamples {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("only this method and drop take it");
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
