//! Compares inlane's NVMe target with plain request-response servers over TCP. The target and the servers
//! take turns.
//!
//! One client thread keeps requests of 72 bytes in flight and counts the bytes of the responses. The target
//! and each server have one thread:
//!
//! * **plain** servers receive requests and send responses of the same sizes as the target's. One server
//!   sends the requested block of a large memory, as the target must. Another server always sends the same
//!   buffer, which stays in the cache;
//! * **target** is inlane's target with a namespace in memory and random reads.
//!
//! Prints the medians of several turns and their ratios. The ratio of the processor times is meaningful on a
//! busy machine, too. Run with `cargo bench -p inlane-nvme --bench target [-- SERVER_CORE CLIENT_CORE]`.

use inlane_nvme::namespace::Storage;
use inlane_nvme::target::subsystem::Limits;
use inlane_nvme::target::{Config, Hosts, Target};
use inlane_nvme::wire::command::{
    Command, ConnectData, Sgl, admin, cc, connect, csts, feature, io, property,
};
use inlane_nvme::wire::pdu::{Digests, Kind, MAX_HEADER, Pdu, encode};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const TURN: Duration = Duration::from_millis(400);
const TURNS: usize = 7;
const NAMESPACE_BYTES: u64 = 256 << 20;
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";

/// A benchmark client of one of the compared servers: its connection, and the kind of its requests.
struct Load {
    stream: TcpStream,
    digests: Digests,
    block: u32,
    depth: usize,
    state: u64,
    /// The name of the server's thread.
    server: &'static str,
}

/// Returns the processor time of all threads of this process with the name `name`.
fn processor_time(name: &str) -> Duration {
    let mut total = Duration::ZERO;
    for entry in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let Some(id) = entry.file_name().to_str().and_then(|id| id.parse::<i32>().ok()) else { continue };
        if comm.trim() == name {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the call writes only to the structure. The clock number is the kernel's code for the
            // processor time of thread `id`.
            unsafe { libc::clock_gettime(!id << 3 | 6, &mut time) };
            total += Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        }
    }
    total
}

/// What a turn measured.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    /// The processor time of the server's thread per request, in nanoseconds.
    server_ns: f64,
    median_us: f64,
    p99_us: f64,
}

impl Load {
    fn response_bytes(&self) -> usize {
        let digest = |used: bool| if used { 4 } else { 0 };
        2 * (24 + digest(self.digests.header)) + self.block as usize + digest(self.digests.data)
    }

    fn request(&mut self, cid: u16, out: &mut Vec<u8>) {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let blocks = self.block / 512;
        let lba = (self.state >> 33) % (NAMESPACE_BYTES / u64::from(self.block)) * u64::from(blocks);
        let mut command = Command::blocks(io::READ, 1, lba, blocks, Sgl::transport(self.block));
        command.cid = cid.into();
        let start = out.len();
        out.resize(start + MAX_HEADER, 0);
        let length = encode(&Pdu::new(Kind::CapsuleCmd, 0, command), 0, self.digests, 4, &mut out[start..]);
        out.truncate(start + length);
    }

    /// Keeps `depth` requests in flight for [`TURN`]. Returns the rate, the latencies and the processor time
    /// of the server's thread.
    fn run(&mut self) -> Figures {
        let size = self.response_bytes();
        let (mut out, mut input) = (Vec::new(), vec![0_u8; 1 << 20]);
        let (mut latencies, mut sent_at) = (Vec::new(), Instant::now());
        for cid in 0..self.depth {
            self.request(cid as u16, &mut out);
        }
        self.stream.write_all(&out).expect("sent");
        let before = processor_time(self.server);
        let (start, mut bytes, mut responses) = (Instant::now(), 0, 0_u64);
        loop {
            let count = self.stream.read(&mut input).expect("received");
            assert!(count > 0, "the server closed the connection");
            bytes += count;
            let complete = bytes / size;
            bytes %= size;
            if complete == 0 {
                continue;
            }
            responses += complete as u64;
            if self.depth == 1 {
                latencies.push(sent_at.elapsed().as_nanos() as u32);
            }
            if start.elapsed() >= TURN {
                let mut left = self.depth - complete;
                while left > 0 {
                    bytes += self.stream.read(&mut input).expect("received");
                    left -= bytes / size;
                    bytes %= size;
                }
                break;
            }
            out.clear();
            for n in 0..complete {
                self.request(((responses as usize + n) % self.depth) as u16, &mut out);
            }
            sent_at = Instant::now();
            self.stream.write_all(&out).expect("sent");
        }
        let server_ns = (processor_time(self.server) - before).as_nanos() as f64 / responses as f64;
        latencies.sort_unstable();
        let at = |share: f64| {
            latencies
                .get(((latencies.len() as f64 * share) as usize).min(latencies.len().max(1) - 1))
                .map_or(0.0, |ns| f64::from(*ns) / 1e3)
        };
        Figures {
            per_second: responses as f64 / start.elapsed().as_secs_f64(),
            server_ns,
            median_us: at(0.5),
            p99_us: at(0.99),
        }
    }
}

/// The response data of a server without NVMe, with which the target is compared. It is the same bytes each
/// time, or the bytes of a large memory at the offset in the request.
#[derive(Clone, Copy)]
enum Source {
    Buffer,
    Memory(&'static [u8]),
}

/// Starts a server that answers requests of fixed lengths, without NVMe. Returns a connection to it.
fn plain(core: usize, source: Source, request: usize, response: usize, block: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address");
    let name = match source {
        Source::Buffer => "plain-buffer",
        Source::Memory(_) => "plain-memory",
    };
    let serve = move || {
        let _ = inlane_core::cores::bind(&[core]);
        let (mut stream, _) = listener.accept().expect("accepted");
        stream.set_nodelay(true).expect("set");
        let (mut input, mut pending) = (vec![0_u8; 64 << 10], 0);
        let output = vec![7_u8; response * 256];
        while let Ok(count @ 1..) = stream.read(&mut input[pending..]) {
            pending += count;
            let complete = pending / request;
            let mut parts = Vec::with_capacity(2 * complete);
            match source {
                Source::Buffer if complete <= 256 => parts.push(IoSlice::new(&output[..complete * response])),
                Source::Buffer => parts.resize(complete, IoSlice::new(&output[..response])),
                Source::Memory(memory) => {
                    for request in input[..complete * request].chunks_exact(request) {
                        // Bytes 48 to 55 of a command capsule hold the number of the first block to read.
                        let lba = u64::from_le_bytes(request[48..56].try_into().expect("8 bytes")) as usize;
                        parts.push(IoSlice::new(&memory[lba * 512..][..block]));
                        parts.push(IoSlice::new(&output[..response - block]));
                    }
                }
            }
            let mut left = &mut parts[..];
            while !left.is_empty() {
                match stream.write_vectored(&left[..left.len().min(1024)]) {
                    Ok(count) => IoSlice::advance_slices(&mut left, count),
                    Err(_) => return,
                }
            }
            input.copy_within(complete * request..pending, 0);
            pending -= complete * request;
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(serve).expect("started");
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("set");
    stream
}

/// Sends a command while no other is in flight, and waits for its completion. Returns dword 0 of the
/// completion.
fn call(stream: &mut TcpStream, digests: Digests, mut command: Command, data: &[u8]) -> u32 {
    command.cid = 1.into();
    let mut bytes = vec![0; MAX_HEADER];
    let length = encode(&Pdu::new(Kind::CapsuleCmd, 0, command), data.len() as u32, digests, 4, &mut bytes);
    bytes.truncate(length);
    bytes.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        bytes.extend_from_slice(&inlane_nvme::wire::pdu::digest(data));
    }
    stream.write_all(&bytes).expect("sent");
    let mut response = vec![0; 24 + if digests.header { 4 } else { 0 }];
    stream.read_exact(&mut response).expect("received");
    let status = u16::from_le_bytes([response[22], response[23]]) >> 1;
    assert_eq!(status, 0, "status {status:#x}");
    u32::from_le_bytes(response[8..12].try_into().expect("4 bytes"))
}

fn initialize(address: SocketAddr, digests: Digests) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_nodelay(true).expect("set");
    let mut bytes = [0; MAX_HEADER];
    let length = encode(&Pdu::initialization(Kind::IcReq, digests, 0), 0, Digests::default(), 4, &mut bytes);
    stream.write_all(&bytes[..length]).expect("sent");
    stream.read_exact(&mut bytes).expect("received");
    stream
}

/// Connects an admin queue and an I/O queue.
fn attach(target: &Target, digests: Digests) -> (TcpStream, TcpStream) {
    let (address, nqn) = (target.subsystem().listeners[0], &target.subsystem().nqn);
    let mut admin = initialize(address, digests);
    let data = |id| ConnectData::new([1; 16], id, nqn, HOST);
    let command = Command::connect(0, 32, 0, 0);
    let id = call(&mut admin, digests, command, data(connect::ANY_CONTROLLER).as_bytes()) as u16;
    call(&mut admin, digests, Command::property_set(property::CC, cc::ENABLE | cc::ENTRY_SIZES), &[]);
    while call(&mut admin, digests, Command::property_get(property::CSTS, false), &[]) & csts::READY == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut queues = Command::new(admin::SET_FEATURES, 0);
    queues.cdw10 = u32::from(feature::NUMBER_OF_QUEUES).into();
    call(&mut admin, digests, queues, &[]);
    let mut queue = initialize(address, digests);
    call(&mut queue, digests, Command::connect(1, 256, 0, 0), data(id).as_bytes());
    (admin, queue)
}

fn median(values: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut values: Vec<f64> = values.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let numbers = (numbers.first().copied().unwrap_or(0), numbers.get(1).copied().unwrap_or(1));
    let config = Config {
        listen: vec!["127.0.0.1:0".parse().expect("an address")],
        namespaces: vec![format!("memory:{}", NAMESPACE_BYTES).parse().expect("a namespace")],
        nqn: None,
        hosts: Hosts::Any,
        cores: vec![numbers.0],
        threads: 1,
        spin: Duration::ZERO,
        limits: Limits::default(),
    };
    let target = Target::start(config).expect("the target starts");
    let _ = inlane_core::cores::bind(&[numbers.1]);
    // Write the memory once. The kernel uses one page of zeros for all memory that was never written, and
    // reads would find this page in the cache.
    let Storage::Memory(storage) = &target.subsystem().namespaces[0].storage else { unreachable!("memory") };
    let data = vec![7; 1 << 20];
    (0..NAMESPACE_BYTES >> 20).for_each(|n| storage.write(n << 20, &data));
    let memory = huge_memory();
    println!("medians of {TURNS} turns of {} ms each", TURN.as_millis());
    for (block, depth, digests) in [
        (4096, 1, Digests::default()),
        (4096, 32, Digests::default()),
        (4096, 128, Digests::default()),
        (131_072, 8, Digests::default()),
        (4096, 32, Digests { header: true, data: true }),
        (131_072, 8, Digests { header: true, data: true }),
    ] {
        let (_admin, stream) = attach(&target, digests);
        let target_load = Load { stream, digests, block, depth, state: 1, server: "inlane-nvme-0" };
        let request = 72 + if digests.header { 4 } else { 0 };
        let response = target_load.response_bytes();
        let start = |server, source| {
            let stream = plain(numbers.0, source, request, response, block as usize);
            Load { stream, digests, block, depth, state: 1, server }
        };
        let mut loads = [
            target_load,
            start("plain-memory", Source::Memory(memory)),
            start("plain-buffer", Source::Buffer),
        ];
        let mut found = [const { Vec::new() }; 3];
        for _ in 0..TURNS {
            loads.iter_mut().zip(&mut found).for_each(|(load, figures)| figures.push(load.run()));
        }
        println!("{block} B, depth {depth}, digests {}", if digests.data { "on" } else { "off" });
        let of = |index: usize, what: fn(&Figures) -> f64| median(&found[index], what);
        for (index, name) in ["target", "plain, random memory", "plain, one buffer"].into_iter().enumerate() {
            let (rate, time) = (of(index, |it| it.per_second), of(index, |it| it.server_ns));
            print!(
                "  {name:<21} {rate:>8.0}/s {:>6.2} GB/s, server {time:>6.0} ns",
                rate * f64::from(block) / 1e9
            );
            if index > 0 {
                let (rates, times) = (of(0, |it| it.per_second) / rate, time / of(0, |it| it.server_ns));
                print!("; target / plain: rate {rates:.3}, by processor time {times:.3}");
            }
            if depth == 1 {
                print!(
                    "; median {:.1} us, p99 {:.1} us",
                    of(index, |it| it.median_us),
                    of(index, |it| it.p99_us)
                );
            }
            println!();
        }
    }
}

/// Returns as much memory as the namespace has, in huge pages like the namespace's. It is never freed.
fn huge_memory() -> &'static [u8] {
    const HUGE_PAGE: usize = 2 << 20;
    let memory = vec![0; NAMESPACE_BYTES as usize + HUGE_PAGE].leak();
    let start = memory.as_ptr().align_offset(HUGE_PAGE);
    let memory = &mut memory[start..][..NAMESPACE_BYTES as usize];
    // SAFETY: the range is part of the allocation. The call does not change its contents.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE) };
    memory.fill(7);
    memory
}
