//! A hostile peer of a memif port. It changes any byte of its handshake, then writes anything into the shared memory and sends
//! any message while the port receives and sends. The port must neither panic nor hang, and must access no byte outside its
//! memory.

use inlane_core::packet::{HeapPool, Packet, Pool};
use inlane_core::port::{Port, Reservation, Rx, Tx};
use inlane_ports::memif::{Memif, MemifSettings};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const MESSAGE: usize = 128;
const ROOM: usize = 2048;
/// The places of both rings and of the buffers in the region of a hostile client.
const RINGS: [usize; 2] = [0, 4096];
const BUFFERS: usize = 8192;
const REGION: usize = 65536;
const SLOTS_LOG2: u8 = 3;

/// The input, from which every decision is read. It is 0 behind its end.
struct Input<'a>(std::slice::Iter<'a, u8>);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Changes up to three bytes, or none.
    fn damage(&mut self, message: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let at = usize::from(self.byte()) % message.len();
            message[at] = self.byte();
        }
    }
}

/// Memory of the hostile end.
struct Mapping {
    address: *mut u8,
    bytes: usize,
}

impl Mapping {
    fn new(memory: BorrowedFd<'_>) -> Option<Self> {
        let bytes = rustix::fs::fstat(memory).ok()?.st_size as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memory, 0) };
        Some(Self { address: address.ok()?.cast(), bytes })
    }

    /// Writes a byte. The offset wraps around at the end of the memory.
    fn write(&self, at: usize, value: u8) {
        // SAFETY: the byte lies in the mapping. The other end reads it by other addresses.
        unsafe { self.address.add(at % self.bytes).write_volatile(value) };
    }

    fn write_all(&self, at: usize, bytes: &[u8]) {
        bytes.iter().enumerate().for_each(|(index, &byte)| self.write(at + index, byte));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and nothing refers to it.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
    }
}

fn send(socket: &OwnedFd, message: &[u8], descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if descriptor.is_some() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags);
}

/// Returns a message with these fields.
fn message(kind: u16, fields: &[(usize, &[u8])]) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    for (at, field) in [(0, &kind.to_ne_bytes()[..])].iter().chain(fields) {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// Sends the messages of a client, damaged by the input. Returns the memory.
fn act_as_client(input: &mut Input, socket: &OwnedFd) -> Mapping {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&memory, REGION as u64).unwrap();
    if input.byte() != 255 {
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK).unwrap();
    }
    let mapping = Mapping::new(memory.as_fd()).unwrap();
    for ring in RINGS {
        mapping.write_all(ring, &0x3E3_1F20u32.to_ne_bytes());
        mapping.write(ring + 4, 1);
    }
    let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let mut whole = [
        (message(3, &[(2, &0x200u16.to_ne_bytes()), (4, &7u32.to_ne_bytes())]), None),
        (message(4, &[(4, &(REGION as u64).to_ne_bytes())]), Some(memory.as_fd())),
        (message(5, &[(2, &1u16.to_ne_bytes()), (12, &[SLOTS_LOG2])]), Some(doorbell.as_fd())),
        (message(5, &[(8, &(RINGS[1] as u32).to_ne_bytes()), (12, &[SLOTS_LOG2])]), Some(doorbell.as_fd())),
        (message(6, &[]), None),
    ];
    for (bytes, descriptor) in &mut whole {
        input.damage(bytes);
        send(socket, bytes, *descriptor);
    }
    mapping
}

/// Sends the messages of a server, damaged by the input, before they are asked for.
fn act_as_server(input: &mut Input, socket: &OwnedFd) {
    let version = 0x200u16.to_ne_bytes();
    let mut hello = message(2, &[(34, &version), (36, &version), (44, &[SLOTS_LOG2])]);
    input.damage(&mut hello);
    send(socket, &hello, None);
    for kind in [1, 1, 1, 1, 7] {
        let mut bytes = message(kind, &[]);
        input.damage(&mut bytes);
        send(socket, &bytes, None);
    }
}

/// Maps the memory that a client has sent.
fn received_memory(socket: &OwnedFd) -> Option<Mapping> {
    loop {
        let mut bytes = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(socket, &mut parts, &mut control, flags).ok()?;
        if received.bytes == 0 {
            return None;
        }
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = ancillary
                && bytes[0] == 4
                && let Some(memory) = descriptors.next()
            {
                return Mapping::new(memory.as_fd());
            }
        }
    }
}

/// The port, and what it may access.
struct Honest {
    pool: Arc<dyn Pool>,
    rx: Box<dyn Rx>,
    tx: Box<dyn Tx>,
    shared: Vec<Range<usize>>,
}

impl Honest {
    fn act(&mut self, action: u8, argument: usize) {
        let Self { pool, rx, tx, shared } = self;
        let mut packets = [Packet::EMPTY; 8];
        match action {
            0 => {
                if let Ok(count) = rx.receive(&mut packets) {
                    assert!(packets[..count].iter().all(|packet| packet.length as usize <= ROOM));
                    // SAFETY: the packets were just received, and are freed once.
                    unsafe { pool.free(&packets[..count]) };
                }
            }
            1 => {
                let mut sum = 0u64;
                let _ = rx.receive_in_place(argument % 8, &mut |address, len| {
                    let start = address as usize;
                    // A frame of several buffers lies in a copy of at most 128 KiB.
                    let is_shared = shared.iter().any(|region| region.contains(&start));
                    let fits = shared.iter().any(|region| region.start <= start && start + len <= region.end);
                    assert!(if is_shared { fits } else { len <= 128 << 10 });
                    // SAFETY: the queue guarantees the frame during this call.
                    sum +=
                        (0..len).map(|at| u64::from(unsafe { address.add(at).read_volatile() })).sum::<u64>();
                    !argument.is_multiple_of(3) || !sum.is_multiple_of(5)
                });
            }
            2 => {
                if pool.allocate(&mut packets[..1]) == 1 {
                    packets[0].length = (argument % ROOM) as u32 + 1;
                    // SAFETY: the packet was just allocated, and is sent or freed once.
                    unsafe {
                        packets[0].bytes_mut().fill(argument as u8);
                        if tx.send(&packets[..1]).unwrap_or(0) == 0 {
                            pool.free(&packets[..1]);
                        }
                    }
                }
            }
            3 => {
                let len = argument % 4096;
                if let Reservation::Memory(memory) = tx.reserve(len) {
                    let start = memory.as_ptr() as usize;
                    assert!(shared.iter().any(|region| region.start <= start && start + len <= region.end));
                    // SAFETY: the queue has reserved this memory.
                    unsafe { memory.as_ptr().write_bytes(argument as u8, len) };
                    if !argument.is_multiple_of(7) {
                        tx.commit();
                    }
                }
            }
            4 => {
                let _ = rx.begin_sleep();
                rx.end_sleep();
            }
            _ => drop(tx.flush()),
        }
    }
}

pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes.iter());
    let server = input.byte() % 2 == 0;
    let kind = SocketType::SEQPACKET;
    let (own, socket) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let mapping = match server {
        true => Some(act_as_client(&mut input, &own)),
        false => {
            act_as_server(&mut input, &own);
            None
        }
    };
    // The port finds the end of the handshake at once if a message is missing.
    rustix::net::shutdown(&own, Shutdown::Write).unwrap();
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new(16, ROOM).unwrap());
    let mut port = Memif::new(MemifSettings {
        name: "memif:fuzz".into(),
        socket: "unused".into(),
        server,
        id: 7,
        secret: None,
        wait: Duration::ZERO,
        buffer: ROOM as u32,
        partial_checksums: true,
    });
    let Ok(shared) = port.configure_over(socket, std::slice::from_ref(&pool), Duration::from_secs(5)) else {
        return;
    };
    let Some(mapping) = mapping.or_else(|| received_memory(&own)) else { return };
    let (rx, tx) = (port.take_rx(0).unwrap(), port.take_tx(0, pool.clone()).unwrap());
    let mut honest = Honest { pool, rx, tx, shared };
    while !input.is_empty() {
        let action = input.byte();
        match action % 10 {
            // The words of a ring's header: flags, head and tail.
            6 | 7 => {
                let at = RINGS[usize::from(action / 10 % 2)] + [4, 6, 64][usize::from(action / 20 % 3)];
                // Most words that the port accepts are small.
                let value = if action % 10 == 6 { u16::from(input.byte() % 16) } else { input.word() };
                mapping.write_all(at, &value.to_ne_bytes());
            }
            // A descriptor.
            8 => {
                let slot = usize::from(input.byte() % 8);
                let (flags, region, length) = (input.byte() % 4, input.byte() % 3, input.word());
                let mut descriptor = [0; 16];
                descriptor[0] = flags;
                descriptor[2] = region;
                descriptor[4..6].copy_from_slice(&(length % 4096).to_ne_bytes());
                descriptor[7] = if length > 60_000 { 0xff } else { 0 };
                let offset = BUFFERS as u32 + u32::from(input.word());
                descriptor[8..12].copy_from_slice(&offset.to_ne_bytes());
                mapping.write_all(RINGS[usize::from(action / 10 % 2)] + 128 + 16 * slot, &descriptor);
            }
            // Any byte.
            9 => mapping.write(usize::from(input.word()), input.byte()),
            action => honest.act(action, usize::from(input.word())),
        }
    }
    let pool = honest.pool.clone();
    drop((honest, port));
    assert_eq!(pool.outstanding(), 0);
}
