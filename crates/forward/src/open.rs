//! From ports as users write them to open ports, and the pools that fill them.

use crate::config::{Config, Route};
use crate::error::Result;
use crate::gpu::Memory;
use crate::ports::check::{Checker, reference};
use crate::ports::generate::Generator;
use crate::ports::null::Null;
use crate::ports::oran::Radio;
use crate::ports::pcap::{Sink, Source};
use inlane_core::clock::Clock;
use inlane_core::{Error, HeapPool, Pool, Port};
use inlane_cuda::Gpu;
use inlane_dpdk::MbufPool;
use inlane_dpdk::spec::Spec;
use std::sync::Arc;

/// The kind of a port: what stands before its first colon or comma.
pub fn kind(name: &str) -> &str {
    name.split([':', ',']).next().unwrap_or_default()
}

/// True for ports that may stand on both sides of a run under one name; captures, generators and checkers are one each.
pub fn is_shared(name: &str) -> bool {
    kind(name) == "null" || Spec::is_ours(name)
}

/// True for ports that an ordinary user cannot open.
pub fn takes_privileges(name: &str) -> bool {
    ["af_xdp", "af_packet", "tap", "pci"].contains(&kind(name))
}

/// What was opened.
pub struct Opened {
    /// The ports, as named.
    pub ports: Vec<Box<dyn Port>>,
    /// Bytes that buffers must hold at least.
    pub room: usize,
}

/// Opens every port. What is received from is opened first: a checker and a capture that is written learn from it.
///
/// # Errors
/// When one of them cannot be opened, or is of no kind that there is.
pub fn ports(names: &[String], config: &Config, clock: &Clock) -> Result<Opened> {
    let received = match &config.route {
        Route::OneWay { rx, .. } => Some(rx),
        Route::Between(..) => None,
    };
    let (mut generator, mut radio, mut source) = (None, None, None);
    let mut room = config.room;
    match received.map(|name| (name, kind(name))) {
        Some((name, "gen")) if Radio::is(name) => {
            let mut opened = Radio::open(name, clock)?;
            if config.rate.is_some() {
                opened.set_rate(config.rate);
            }
            room = room.max(opened.plan().longest());
            radio = Some(opened);
        }
        Some((name, "gen")) => {
            let mut opened = Generator::open(name, clock)?;
            if config.rate.is_some() {
                opened.set_rate(config.rate);
            }
            room = room.max(opened.traffic().longest());
            generator = Some(opened);
        }
        Some((name, "pcap")) => {
            let opened = Source::open(name, config.playback)?;
            room = room.max(opened.longest());
            source = Some(opened);
        }
        _ => {}
    }
    let mut ports: Vec<Option<Box<dyn Port>>> = Vec::new();
    let mut receiver = None;
    for (index, name) in names.iter().enumerate() {
        let is_receiver = receiver.is_none() && Some(name) == received;
        ports.push(match kind(name) {
            "gen" | "pcap" if is_receiver => {
                receiver = Some(index);
                None
            }
            "pcap" => Some(Box::new(Sink::create(name, source.as_ref())?)),
            "check" => {
                let reference = reference::find(&config.function)?;
                Some(Box::new(Checker::open(name, clock, generator.as_ref(), reference)?))
            }
            "gen" => {
                return Err(Error::port_usage(name, "a generator only receives: write it behind --rx").into());
            }
            "null" => {
                let mut opened = Null::open(name, clock)?;
                if config.rate.is_some() {
                    opened.set_rate(config.rate);
                }
                room = room.max(opened.size());
                Some(Box::new(opened))
            }
            _ if Spec::is_ours(name) => Some(inlane_dpdk::open_for(name, config.pipelines)?),
            kind => {
                let why = format!(
                    "no port of kind '{kind}'; there are null, gen, check, pcap, {}",
                    Spec::KINDS.join(", ")
                );
                return Err(Error::port_usage(name, why).into());
            }
        });
    }
    let opened = generator.map(|port| Box::new(port) as Box<dyn Port>);
    let opened = opened.or(radio.map(|port| Box::new(port) as Box<dyn Port>));
    let mut opened = opened.or(source.map(|port| Box::new(port) as Box<dyn Port>));
    let ports = ports.into_iter().map(|port| port.or_else(|| opened.take()));
    Ok(Opened {
        ports: ports.collect::<Option<_>>().expect("all but the receiver are open, and it is too"),
        room,
    })
}

/// A pool for each pipeline of each direction: of mbufs as soon as one port is DPDK's, which can send nothing else.
///
/// # Errors
/// When there is no memory for them.
pub fn pools(
    names: &[String],
    config: &Config,
    room: usize,
    directions: usize,
    gpu: Option<&Arc<Gpu>>,
) -> Result<Vec<Vec<Arc<dyn Pool>>>> {
    let mbufs = names.iter().any(|name| Spec::is_ours(name));
    let one = || -> Result<Arc<dyn Pool>> {
        let buffers = config.buffers();
        if let Some(gpu) = gpu {
            let heap = || {
                HeapPool::bytes(buffers, room).ok_or_else(|| Error::Invalid {
                    what: format!("a pool of {buffers} buffers of {room} bytes"),
                    why: "ask for fewer with --buffers".into(),
                })
            };
            match (config.gpu.memory, mbufs) {
                (Memory::Pool, true) => {
                    return Ok(MbufPool::over(gpu.allocate(MbufPool::bytes(buffers, room))?, room)?);
                }
                (Memory::Pool, false) => return Ok(Arc::new(HeapPool::over(gpu.allocate(heap()?)?, room)?)),
                // The driver's own pinned memory is in larger pages than what is registered with it.
                (_, false) => {
                    let region = gpu.pinned(heap()?)?;
                    return Ok(Arc::new(HeapPool::over(region, room)?));
                }
                // Mbufs and their data are one: DPDK's memory is registered as it is.
                (_, true) => {}
            }
        }
        Ok(match mbufs {
            true => MbufPool::new(buffers, room)?,
            false => Arc::new(HeapPool::new(buffers, room)?),
        })
    };
    (0..directions).map(|_| (0..config.pipelines).map(|_| one()).collect()).collect()
}
