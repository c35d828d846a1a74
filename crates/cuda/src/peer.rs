//! Which GPUs reach each other's memory.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice_P2PAttribute as Attribute, CUresult};

/// What the driver says of one GPU's way to another's memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct PeerInfo {
    /// The first can read and write the second's memory.
    pub can_access: bool,
    /// The driver's rank of the link: 0 is the best.
    pub performance_rank: i32,
    /// Atomics work across it natively.
    pub native_atomics: bool,
}

/// How `from` reaches `to`.
///
/// # Errors
/// When the driver refuses.
pub fn peer_info(from: &Gpu, to: &Gpu) -> Result<PeerInfo> {
    let mut access = 0;
    // SAFETY: valid devices and pointer.
    unsafe { call!(pair(from, to), cuDeviceCanAccessPeer(&mut access, from.handle(), to.handle()))? };
    let attribute = |attribute| -> Result<i32> {
        let mut value = 0;
        // SAFETY: as above.
        unsafe {
            call!(pair(from, to), cuDeviceGetP2PAttribute(&mut value, attribute, from.handle(), to.handle()))?
        };
        Ok(value)
    };
    Ok(PeerInfo {
        can_access: access != 0,
        performance_rank: attribute(Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
        native_atomics: attribute(Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
    })
}

/// Lets `from` reach all memory of `to`, present and future, until the process ends; twice is once. Copies between the two
/// then go directly, which cannot be taken back by a flag: a comparison with peer access off needs a process of its own.
///
/// # Errors
/// [`Error::Invalid`] when they cannot reach each other.
pub fn enable_peer_access(from: &Gpu, to: &Gpu) -> Result<()> {
    if !peer_info(from, to)?.can_access {
        return Err(Error::invalid(
            format!("peer access from {from} to {to}"),
            "the two cannot reach each other (different root complexes, or the hypervisor forbids it); use a path through \
             the host",
        ));
    }
    from.make_current()?;
    // SAFETY: both contexts live.
    match unsafe { sys::cuCtxEnablePeerAccess(to.context(), 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => crate::error::check(answer, "cuCtxEnablePeerAccess", || pair(from, to)),
    }
}

fn pair(from: &Gpu, to: &Gpu) -> String {
    format!("{from} to {to}")
}
