//! Makes pool memory accessible to network cards.
//!
//! DPDK does not allocate the memory of pools. So this module registers the memory with DPDK, and maps it in
//! the IOMMU while a card uses the pool. Cards under vfio-pci share one set of mappings. A pool is unmapped
//! when no card uses it.

use crate::error::{Error, Result};
use crate::{MbufPool, eal, log, sys};
use inlane_core::Pool;
use std::sync::{Arc, Mutex, PoisonError};

/// The pools whose memory is mapped for cards. Each entry is the address of a pool, and the number of cards
/// that use it.
static MAPPED: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

/// The mapping of a pool's memory for a card. Drop it after the card has been closed and before the card is
/// detached.
pub(crate) struct DmaMapping {
    pool: Arc<MbufPool>,
    card: *mut sys::rte_device,
}

impl DmaMapping {
    /// Maps `pool` for `card`, which is the device of port `port`.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason and what to do.
    pub(crate) fn new(port: &str, pool: Arc<MbufPool>, card: *mut sys::rte_device) -> Result<Self> {
        let refuse = |why: String| Error::Device {
            port: port.to_owned(),
            doing: "mapping packet buffers for the card".into(),
            why,
        };
        if !eal::start()?.virtual_addresses && !pool.is_in_hugepages() {
            return Err(refuse(
                "without an IOMMU a card needs buffers in hugepages, and the pool has none; reserve hugepages (inlane doctor hugepages), \
                 or switch the IOMMU on (inlane doctor iommu)"
                    .into(),
            ));
        }
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let base = pool.region().address();
        if let Some((_, users)) = mapped.iter_mut().find(|(address, _)| *address == base) {
            *users += 1;
        } else if eal::start()?.virtual_addresses {
            let mark = log::LogPosition::new();
            if !pool.is_external() {
                // SAFETY: the span consists of whole pages of the pool's memory. This value keeps the pool
                // until it has unregistered the pages.
                let code = unsafe {
                    let (start, length) = span(&pool);
                    sys::rte_extmem_register(start, length, std::ptr::null_mut(), 0, PAGE)
                };
                if code != 0 {
                    return Err(refuse(mark.explain(sys::error_text(sys::last_error()))));
                }
            }
            // SAFETY: the memory is registered, and mapped at the addresses that the pool's mbufs contain.
            // The device is attached.
            let code = unsafe {
                let (start, length) = span(&pool);
                sys::rte_dev_dma_map(card, start, base, length)
            };
            if code != 0 {
                let why = mark.explain(sys::error_text(sys::last_error()));
                unregister(&pool);
                return Err(refuse(format!(
                    "{why}; raise the limit of locked memory (inlane doctor memory-lock) or run as root"
                )));
            }
            mapped.push((base, 1));
        }
        Ok(Self { pool, card })
    }
}

impl Drop for DmaMapping {
    fn drop(&mut self) {
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let base = self.pool.region().address();
        let Some(index) = mapped.iter().position(|&(address, _)| address == base) else { return };
        mapped[index].1 -= 1;
        if mapped[index].1 > 0 {
            return;
        }
        mapped.swap_remove(index);
        let (start, length) = span(&self.pool);
        // SAFETY: the memory was mapped in `new`. No card uses it any more, and `card` is still attached.
        if unsafe { sys::rte_dev_dma_unmap(self.card, start, base, length) } != 0 {
            tracing::warn!("DPDK cannot unmap packet buffers: {}", sys::error_text(sys::last_error()));
        }
        unregister(&self.pool);
    }
}

const PAGE: usize = 4096;

fn span(pool: &MbufPool) -> (*mut std::ffi::c_void, usize) {
    (pool.region().as_ptr().cast(), pool.region().len())
}

/// Unregisters the memory of a pool. Does nothing if the memory is a region that was given to
/// [`MbufPool::over`]. The pool itself has registered such a region and unregisters it when dropped.
fn unregister(pool: &MbufPool) {
    if !pool.is_external() {
        let (start, length) = span(pool);
        // SAFETY: the memory was registered in `DmaMapping::new`, and no card uses it any more.
        unsafe { sys::rte_extmem_unregister(start, length) };
    }
}
