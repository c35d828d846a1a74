//! Measures the throughput of plain request and response messages over TCP. A storage protocol with messages
//! of these sizes cannot be faster than the result.
//!
//!     plain-messages serve 127.0.0.1:7000
//!     plain-messages serve-file 127.0.0.1:7000 FILE SPIN_US
//!     plain-messages load 127.0.0.1:7000 DEPTH REQUEST_BYTES RESPONSE_BYTES SECONDS [SPIN_US]
//!
//! The server answers each request with bytes from 1 GiB of memory (`serve`) or from a file (`serve-file`).
//! DEPTH is the number of requests in flight. SPIN_US is the time in microseconds that a side polls before it
//! sleeps. `load` prints one line of JSON.

mod file;

use inlane_core::stats::LatencyHistogram;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, sendmsg};
use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const MEMORY: usize = 1 << 30;
/// The length of a request's header in bytes. The header holds the request's length, the response's length
/// and the offset of the data.
const HEADER: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", address] => serve(address),
        ["serve-file", address, file, spin] => {
            serve_file(address, file.as_ref(), Duration::from_micros(spin.parse()?))
        }
        ["load", address, depth, request, response, seconds, ref spin @ ..] => {
            let spin = spin.first().map_or(Ok(0), |spin| spin.parse())?;
            let sizes = (request.parse()?, response.parse()?);
            load(address, depth.parse()?, sizes, seconds.parse()?, Duration::from_micros(spin))
        }
        _ => Err("usage: plain-messages serve ADDRESS | serve-file ADDRESS FILE SPIN | load ADDRESS DEPTH REQUEST RESPONSE SECONDS [SPIN]".into()),
    }
}

fn serve(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let memory = filled_memory();
    let listener = TcpListener::bind(address)?;
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        // Ignore errors, because a client may close its connection while responses are in flight.
        let _ = answer(stream, &memory);
    }
    Ok(())
}

/// Returns memory in huge pages, as the target's namespaces have.
fn filled_memory() -> Vec<u8> {
    let mut memory: Vec<u8> = Vec::with_capacity(MEMORY);
    let page = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(4096));
    // SAFETY: the pages lie within the vector's memory. The advice changes no contents.
    unsafe { libc::madvise(page.cast(), MEMORY - 4096, libc::MADV_HUGEPAGE) };
    memory.resize(MEMORY, 1);
    memory
}

fn serve_file(address: &str, path: &Path, spin: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let file = file::open(path)?;
    for stream in TcpListener::bind(address)?.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        let _ = file::answer(&stream, &file, spin);
    }
    Ok(())
}

fn answer(mut stream: TcpStream, memory: &[u8]) -> std::io::Result<()> {
    let mut buffer = vec![0; 128 << 10];
    let mut filled = 0;
    loop {
        let received = stream.read(&mut buffer[filled..])?;
        if received == 0 {
            return Ok(());
        }
        filled += received;
        let mut at = 0;
        let mut slices = Vec::new();
        while filled - at >= HEADER {
            let number =
                |from| u32::from_le_bytes(buffer[at + from..at + from + 4].try_into().expect("4 bytes"));
            let (request, response, offset) = (number(0) as usize, number(4) as usize, number(8) as usize);
            if filled - at < request {
                break;
            }
            slices.push(&memory[offset..offset + response]);
            at += request;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        let mut rest = 0;
        while !slices.is_empty() {
            let list: Vec<_> = slices
                .iter()
                .take(64)
                .enumerate()
                .map(|(n, slice)| IoSlice::new(&slice[if n == 0 { rest } else { 0 }..]))
                .collect();
            rest += sendmsg(&stream, &list, &mut Default::default(), SendFlags::NOSIGNAL)?;
            let sent = slices.iter().scan(0, |end, slice| {
                *end += slice.len();
                (*end <= rest).then_some(*end)
            });
            let sent: Vec<_> = sent.collect();
            rest -= sent.last().copied().unwrap_or(0);
            slices.drain(..sent.len());
        }
    }
}

fn load(
    address: &str,
    depth: usize,
    (request, response): (usize, usize),
    seconds: f64,
    spin: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut random = 1_u64;
    let mut message = |out: &mut Vec<u8>| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let offset = (random >> 33) as usize % (MEMORY / response - 1) * response;
        let start = out.len();
        for number in [request, response, offset, 0] {
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        out.resize(start + request, 0);
    };
    let mut buffer = vec![0; (128 << 10).max(response * 2)];
    let mut out = Vec::new();
    let mut started: VecDeque<Instant> = VecDeque::new();
    let mut latency = LatencyHistogram::default();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(seconds);
    let (mut received, mut messages) = (0, 0_u64);
    let mut now = begin;
    for _ in 0..depth {
        message(&mut out);
        started.push_back(now);
    }
    while now < end {
        stream.write_all(&out)?;
        out.clear();
        received += receive(&mut stream, &mut buffer, spin)?;
        now = Instant::now();
        while received >= response {
            received -= response;
            messages += 1;
            let sent = started.pop_front().expect("a message in flight");
            latency.record((now - sent).as_nanos() as u64, 1);
            message(&mut out);
            started.push_back(now);
        }
    }
    let seconds = (now - begin).as_secs_f64();
    let percentiles = latency.percentiles().ok_or("no message was answered")?;
    println!(
        "{{\"operations_per_second\": {:.1}, \"bytes_per_second\": {:.1}, \"p50_ns\": {}, \"p99_ns\": {}}}",
        messages as f64 / seconds,
        messages as f64 * response as f64 / seconds,
        percentiles.p50_ns,
        percentiles.p99_ns
    );
    Ok(())
}

/// Polls the socket for up to `spin`. If no bytes have arrived, sleeps until bytes arrive. Returns the number
/// of received bytes, or 0 at the end of the stream.
fn receive(stream: &mut TcpStream, buffer: &mut [u8], spin: Duration) -> std::io::Result<usize> {
    let start = Instant::now();
    while !spin.is_zero() && start.elapsed() < spin {
        match recv(&*stream, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => return Ok(bytes),
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    stream.read(buffer)
}
