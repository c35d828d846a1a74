//! Peer access: how one GPU can access another GPU's memory, and enabling it.

use crate::device::Gpu;
use crate::driver::call;
use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUdevice_P2PAttribute as Attribute, CUresult};

/// How one GPU (the first) can access the memory of another GPU (the second).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct PeerInfo {
    /// True if the first GPU can read and write the second's memory.
    pub can_access: bool,
    /// The rank that the driver gives to the link between the GPUs. 0 is the fastest.
    pub performance_rank: i32,
    /// True if the first GPU can run atomic operations on the second's memory.
    pub native_atomics: bool,
}

/// Returns how `from` can access the memory of `to`.
///
/// # Errors
/// If the driver call fails.
pub fn peer_info(from: &Gpu, to: &Gpu) -> Result<PeerInfo> {
    let mut access = 0;
    // SAFETY: the devices and the pointer are valid.
    unsafe { call!(pair(from, to), cuDeviceCanAccessPeer(&mut access, from.handle(), to.handle()))? };
    let attribute = |attribute| -> Result<i32> {
        let mut value = 0;
        // SAFETY: the devices and the pointer are valid.
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

/// Allows GPU `from` to access all memory of GPU `to`. Copies between the two GPUs are then direct. The
/// permission cannot be withdrawn: it lasts until the process ends.
///
/// # Errors
/// [`Error::Invalid`] if the GPUs cannot access each other's memory.
pub fn enable_peer_access(from: &Gpu, to: &Gpu) -> Result<()> {
    if !peer_info(from, to)?.can_access {
        return Err(Error::invalid(
            format!("peer access from {from} to {to}"),
            "they cannot access each other's memory, because of different root complexes or a hypervisor; use a path through \
             the host",
        ));
    }
    from.make_current()?;
    // SAFETY: both contexts are valid.
    match unsafe { sys::cuCtxEnablePeerAccess(to.context(), 0) } {
        CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        answer => crate::error::check(answer, "cuCtxEnablePeerAccess", || pair(from, to)),
    }
}

fn pair(from: &Gpu, to: &Gpu) -> String {
    format!("{from} to {to}")
}
