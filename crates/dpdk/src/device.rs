//! Turns a port specification into a DPDK device: checks what the port needs, writes the driver's arguments,
//! and explains refusals.

mod card;
mod kernel;
mod memif;

use crate::error::{Error, Result};
use crate::interface::Interface;
use crate::refused_frames::RefusedFrames;
use crate::spec::{EthSpec, PortKind};
use crate::{kernel_counters, log, sys, xdp};
use std::ffi::{CStr, CString};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use crate::spec::LINK_HEADERS;
pub(crate) use memif::buffer as memif_buffer;
pub use memif::memif_socket;

/// The number of devices that DPDK has attached so far. Device names contain it, so that each name is unique.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);

/// A device that DPDK attached.
pub(crate) struct Device {
    /// DPDK's port number.
    pub(crate) port: u16,
    /// The name of the bus that the device is on.
    bus: &'static CStr,
    /// The name of the device on its bus.
    name: CString,
    /// The driver and its kernel interface, if it has one, as text for results. Example: `DPDK net_af_packet
    /// on eth0`.
    pub(crate) path: String,
    /// The kernel interface that the device uses to send and receive. `None` if it uses none.
    pub(crate) interface: Option<Interface>,
    /// The smallest data room in bytes that the driver accepts. `None` if the driver has no such limit.
    pub(crate) required_room: Option<u32>,
    /// The packet sockets that the driver opened. The port counts the packets that these sockets drop.
    pub(crate) packet_sockets: Vec<RawFd>,
    /// Counts the frames that the packet sockets refuse. `None` for ports without packet sockets.
    pub(crate) refused: Option<RefusedFrames>,
    /// A socket that keeps the port's existing kernel interface promiscuous until the socket is closed.
    /// `None` if the port has no such interface.
    promiscuous: Option<OwnedFd>,
    /// The XDP program of an AF_XDP port. The ports of an interface share it. Dropping the last reference
    /// detaches it.
    program: Option<Arc<xdp::Program>>,
}

/// The plan for creating a port's device: the driver's arguments, and the interface, socket rings and XDP
/// program.
struct Plan {
    bus: &'static CStr,
    name: String,
    arguments: String,
    driver: &'static str,
    interface: Option<Interface>,
    /// The sizes of slots and blocks in the rings of packet sockets. `None` for ports without packet sockets.
    slots: Option<kernel::RingSizes>,
    program: Option<Arc<xdp::Program>>,
}

impl Plan {
    /// Creates the plan for a software device, which `driver` creates on DPDK's virtual bus under a unique
    /// name.
    fn new(driver: &'static str, arguments: String) -> Self {
        let name = format!("{driver}{}", ATTACHED.fetch_add(1, Ordering::Relaxed));
        Self { bus: c"vdev", name, arguments, driver, interface: None, slots: None, program: None }
    }

    fn of(spec: &EthSpec) -> Result<Self> {
        Ok(match &spec.kind {
            PortKind::Null { size, copy } => {
                Self::new("net_null", format!("size={size},copy={}", u8::from(*copy)))
            }
            PortKind::Ring { .. } => Self::new("net_ring", String::new()),
            PortKind::AfXdp { interface, queue, busy, copy } => {
                kernel::af_xdp(spec, interface, queue.unwrap_or(0), *busy, *copy)?
            }
            PortKind::AfPacket { interface, queues, frame, bypass } => {
                kernel::af_packet(spec, interface, queues.unwrap_or(1), *frame, *bypass)?
            }
            PortKind::Tap { interface, fixed_mac } => kernel::tap(spec, interface, *fixed_mac)?,
            PortKind::Memif { socket, server, id, secret, .. } => {
                memif::plan(spec, socket, *server, *id, secret.as_deref())?
            }
            PortKind::Pci { address } => {
                card::check(spec, address)?;
                Self { bus: c"pci", name: address.clone(), ..Self::new("PCI", String::new()) }
            }
        })
    }
}

/// Locks the configuration of devices, because DPDK's drivers keep lists of devices without a lock. Hold this
/// lock while you set up or close a device.
pub(crate) fn control() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks what the port of `spec` needs, and attaches its device.
///
/// # Errors
/// If something is missing, in use or forbidden, or if the driver refuses the device.
pub(crate) fn attach(spec: &EthSpec) -> Result<Device> {
    let plan = Plan::of(spec)?;
    let c_string = |text: String| {
        CString::new(text)
            .map_err(|_| Error::Spec { spec: spec.text.clone(), why: "it contains a zero byte".into() })
    };
    let (name, arguments) = (c_string(plan.name)?, c_string(plan.arguments)?);
    let mark = log::LogPosition::new();
    let _lock = control();
    let others = plan.interface.as_ref().map(kernel_counters::packet_sockets).unwrap_or_default();
    // SAFETY: the strings are terminated and outlive the call. The environment is up.
    let code = unsafe { sys::rte_eal_hotplug_add(plan.bus.as_ptr(), name.as_ptr(), arguments.as_ptr()) };
    if code != 0 {
        return Err(failed(spec, "attaching the device", code, &mark));
    }
    let mut device = Device {
        port: 0,
        bus: plan.bus,
        name,
        path: format!("DPDK {}", plan.driver),
        interface: plan.interface,
        required_room: plan.slots.map(|slots| slots.required_room()),
        packet_sockets: Vec::new(),
        refused: None,
        promiscuous: None,
        program: plan.program,
    };
    let outcome = device.find(spec, plan.slots, &others, &mark);
    match outcome {
        Ok(()) => Ok(device),
        Err(error) => {
            device.remove();
            Err(error)
        }
    }
}

impl Device {
    /// Finds what the driver has created: its port, and the interface of a tap or the packet sockets. Makes
    /// an existing interface promiscuous. Installs the filter of packet sockets, which refuses frames that
    /// exceed the sockets' slots.
    fn find(
        &mut self,
        spec: &EthSpec,
        slots: Option<kernel::RingSizes>,
        others: &[RawFd],
        mark: &log::LogPosition,
    ) -> Result<()> {
        // SAFETY: the string is terminated. The number is written during the call.
        let code = unsafe { sys::rte_eth_dev_get_port_by_name(self.name.as_ptr(), &mut self.port) };
        if code != 0 {
            return Err(failed(spec, "finding the device's port", code, mark));
        }
        if let PortKind::Tap { interface, .. } = &spec.kind {
            self.interface = Interface::find_own_tap(interface).ok();
        }
        let Some(interface) = &self.interface else { return Ok(()) };
        if !matches!(spec.kind, PortKind::Tap { .. }) {
            let socket = interface.make_promiscuous().map_err(|error| Error::Device {
                port: spec.text.clone(),
                doing: "receiving frames for every MAC address".into(),
                why: error.to_string(),
            })?;
            self.promiscuous = Some(socket);
        }
        self.path = format!("{} on {}", self.path, interface.name());
        if let Some(slots) = slots {
            self.packet_sockets = kernel_counters::packet_sockets(interface);
            self.packet_sockets.retain(|socket| !others.contains(socket));
            let refused = RefusedFrames::begin(interface, &self.packet_sockets, slots.longest_frame());
            self.refused = Some(refused.map_err(|error| Error::Device {
                port: spec.text.clone(),
                doing: "installing the filter for frames that do not fit a slot".into(),
                why: error.to_string(),
            })?);
        }
        Ok(())
    }

    /// Makes the driver receive frames for every MAC address. Drivers without such a mode receive them
    /// anyway. Does nothing for an existing kernel interface, because [`Interface::make_promiscuous`] has
    /// done it. The driver's function would set the administrator's promiscuous flag and never clear it.
    pub(crate) fn receive_every_address(&self) {
        if self.promiscuous.is_none() {
            // SAFETY: the port is valid.
            unsafe { sys::rte_eth_promiscuous_enable(self.port) };
        }
    }

    /// Releases the XDP program and ends the promiscuous mode of the port's interface.
    pub(crate) fn release_interface(&mut self) {
        (self.program, self.promiscuous) = (None, None);
    }

    /// Detaches a device that was not configured. For a configured one, call [`Device::close`].
    pub(crate) fn detach(&self) {
        let _lock = control();
        self.remove();
    }

    /// Stops, closes and detaches the device. Calls `closed` once the device no longer accesses memory. The
    /// caller must free the buffers that the driver did not return.
    pub(crate) fn close(&self, started: bool, closed: impl FnOnce()) {
        let _lock = control();
        // SAFETY: the port is valid, and no thread calls its driver any more.
        unsafe {
            if started {
                sys::rte_eth_dev_stop(self.port);
            }
            sys::rte_eth_dev_close(self.port);
        }
        closed();
        self.remove();
    }

    fn remove(&self) {
        // SAFETY: the strings are terminated. DPDK refuses unknown names.
        unsafe { sys::rte_eal_hotplug_remove(self.bus.as_ptr(), self.name.as_ptr()) };
    }
}

/// Returns this crate's error for DPDK's error number `code`. `doing` names the step that failed. The error
/// contains DPDK's warnings since `mark`.
pub(crate) fn failed(spec: &EthSpec, doing: &str, code: i32, mark: &log::LogPosition) -> Error {
    let port = spec.text.clone();
    // The AF_XDP driver does not return the kernel's error number, but [`xdp`] recorded it.
    let code = match (&spec.kind, xdp::last_failure(), code) {
        (PortKind::AfXdp { .. }, failure, code) if code != 0 && failure != 0 => -failure,
        (_, _, -1) => -sys::last_error(),
        _ => code,
    };
    match (&spec.kind, -code) {
        (PortKind::AfXdp { interface, queue, .. }, libc::EBUSY) => Error::Busy {
            port,
            what: format!("queue {} of {interface}", queue.unwrap_or(0)),
            remedy: "stop the program that has an AF_XDP socket there (ss --xdp -p), or choose another queue with queue=N"
                .into(),
        },
        (_, libc::EBUSY) => Error::Busy {
            port,
            what: mark.explain(format!("the device ({doing})")),
            remedy: "stop the program that uses it".into(),
        },
        (_, 0) => Error::Device { port, doing: doing.into(), why: mark.explain("the driver refused") },
        (kind, _) => {
            let mut why = mark.explain(sys::error_text(code));
            // The driver prints this text if the kernel refuses the packet memory of an AF_XDP socket.
            if matches!(kind, PortKind::AfXdp { .. }) && why.contains("Failed to create umem") {
                why.extend(kernel::advice_on_locked_memory());
            }
            Error::Device { port, doing: doing.into(), why }
        }
    }
}
