//! Checks that a looped capture allocates no memory during a lap through its file, and does not open the file
//! again.
//!
//! This test is a program of its own because it counts all allocations of the process.

use inlane_core::{HeapPool, Packet, Pool, Port};
use inlane_ports::pcap::{CaptureSource, Playback};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's layout is valid.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer was allocated above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn capture(packets: u32) -> Vec<u8> {
    let mut bytes = 0xa1b2_c3d4u32.to_le_bytes().to_vec();
    bytes.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    for number in 0..packets {
        for word in [1, number, 60, 60] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([number as u8; 60]);
    }
    bytes
}

/// Plays a looped capture of `packets` packets, 101 laps in all. Returns the number of memory allocations in
/// the 100 laps after the first.
fn allocations(packets: u32) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture");
    std::fs::write(&path, capture(packets)).unwrap();
    let playback = Playback { repeat: true, ..Playback::default() };
    let mut source = CaptureSource::open(&format!("pcap:{}", path.display()), playback).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(64, 64).unwrap());
    source.configure(std::slice::from_ref(&pool), 0).unwrap();
    let mut rx = source.take_rx(0).unwrap();
    let mut burst = [Packet::EMPTY; 32];
    let mut received = 0;
    let mut before = 0;
    while received < 101 * packets {
        // The first lap may allocate memory. Read the counter until the first lap ends. Then only later
        // allocations count.
        if received <= packets {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        let count = rx.receive(&mut burst).unwrap();
        assert!(count > 0, "a looped capture has no end");
        for (index, packet) in burst[..count].iter().enumerate() {
            let number = (received + index as u32) % packets;
            // SAFETY: the packet was just received into host memory.
            assert_eq!(unsafe { packet.bytes() }, [number as u8; 60], "packet {number} of its lap");
        }
        // SAFETY: the packets are from this pool, and are not used again.
        unsafe { pool.free(&burst[..count]) };
        received += count as u32;
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn laps_allocate_nothing() {
    assert_eq!(allocations(3), 0, "a capture that the reader's buffer holds");
    assert_eq!(allocations(4000), 0, "a capture that is read again in every lap");
}
