//! Pool memory that network cards may reach.
//!
//! DPDK's own memory is mapped for devices as it is made; pools bring memory of their own, so each is registered with
//! DPDK and mapped in the IOMMU while a card uses it. Cards under vfio-pci share one set of mappings, so a pool that two
//! cards use (one fills it, the other sends from it) is mapped with the first and unmapped with the last.

use crate::error::{Error, Result};
use crate::{MbufPool, eal, log, sys};
use inlane_core::Pool;
use std::sync::{Arc, Mutex, PoisonError};

/// The pools mapped, each with how many cards use it.
static MAPPED: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

/// A pool mapped for a card. The card must have stopped, and still be attached, when it is dropped.
pub(crate) struct Mapping {
    pool: Arc<MbufPool>,
    card: *mut sys::rte_device,
}

impl Mapping {
    /// Maps `pool` for `card`, the device of the port that was written as `port`.
    ///
    /// # Errors
    /// [`Error::Device`] with what the system lacks.
    pub(crate) fn new(port: &str, pool: Arc<MbufPool>, card: *mut sys::rte_device) -> Result<Self> {
        let refuse = |why: String| Error::Device {
            port: port.to_owned(),
            doing: "mapping packet buffers for the card".into(),
            why,
        };
        if !eal::start()?.virtual_addresses && !pool.is_in_hugepages() {
            return Err(refuse(
                "without an IOMMU the card writes to physical addresses, and only hugepages keep theirs; reserve some \
                 (inlane doctor hugepages) or switch the IOMMU on (inlane doctor iommu)"
                    .into(),
            ));
        }
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        let base = pool.region().address();
        if let Some((_, users)) = mapped.iter_mut().find(|(address, _)| *address == base) {
            *users += 1;
        } else if eal::start()?.virtual_addresses {
            let mark = log::Mark::new();
            if !pool.is_external() {
                // SAFETY: the pool's memory, whole pages, unregistered before the pool goes (it is held here).
                let code = unsafe {
                    let (start, length) = span(&pool);
                    sys::rte_extmem_register(start, length, std::ptr::null_mut(), 0, PAGE)
                };
                if code != 0 {
                    return Err(refuse(mark.explain(sys::error_text(sys::last_error()))));
                }
            }
            // SAFETY: registered memory, at the addresses by which mbufs name it; the device is attached.
            let code = unsafe {
                let (start, length) = span(&pool);
                sys::rte_dev_dma_map(card, start, base, length)
            };
            if code != 0 {
                let why = mark.explain(sys::error_text(sys::last_error()));
                unregister(&pool);
                return Err(refuse(format!(
                    "{why}; it must be locked (run as root, or raise the limit: inlane doctor memory-lock), and lie where the \
                     IOMMU's addresses reach"
                )));
            }
            mapped.push((base, 1));
        }
        Ok(Self { pool, card })
    }
}

impl Drop for Mapping {
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
        // SAFETY: mapped in `new`; no card uses it any more, and this one is still attached.
        if unsafe { sys::rte_dev_dma_unmap(self.card, start, base, length) } != 0 {
            tracing::warn!("DPDK did not unmap packet buffers: {}", sys::error_text(sys::last_error()));
        }
        unregister(&self.pool);
    }
}

const PAGE: usize = 4096;

fn span(pool: &MbufPool) -> (*mut std::ffi::c_void, usize) {
    (pool.region().as_ptr().cast(), pool.region().len())
}

/// Those over a region of the user's stay registered as long as the pool lives.
fn unregister(pool: &MbufPool) {
    if !pool.is_external() {
        let (start, length) = span(pool);
        // SAFETY: registered in `Mapping::new`, and in use by no card.
        unsafe { sys::rte_extmem_unregister(start, length) };
    }
}
