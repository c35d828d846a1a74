//! Tests of the UCX transport. Threads of the test process act as the PEs. UCX uses shared memory between
//! them, or TCP if the process was started with `UCX_TLS=tcp,self`.

use super::{Settings, Ucx};
use crate::transport::bootstrap::{Exchange, JobControl};
use crate::transport::rendezvous::{Client, Server};
use crate::transport::{Statics, Transport};
use crate::world::World;
use crate::world::tests::{FEW, broadcasts_in_slices};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Runs `body` as each of `pes` PEs. Returns without a test if UCX is missing.
fn job(name: &str, pes: u32, statics: bool, body: impl Fn(World<Ucx>) + Sync) {
    if let Err(error) = Ucx::version() {
        eprintln!("SKIPPED {name}: {error}");
        return;
    }
    let server = Server::new(pes, IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
    std::thread::scope(|scope| {
        for pe in 0..pes {
            let (server, body) = (&server, &body);
            scope.spawn(move || {
                let client = Arc::new(Client::join(server.meeting(), pe).unwrap());
                let mut memory = vec![0u64; if statics { 1024 } else { 0 }];
                let statics = statics.then(|| Statics {
                    offset: World::<Ucx>::statics_offset(pes),
                    address: memory.as_mut_ptr() as usize,
                    bytes: 8192,
                });
                let bytes = World::<Ucx>::symmetric_bytes(pes, statics.map_or(0, |one| one.bytes), 4 << 20);
                let exchange: Arc<dyn Exchange> = client.clone();
                // SAFETY: `memory` is dropped after the transport.
                let ucx = unsafe {
                    Ucx::connect(exchange, bytes, statics, Settings { yields: true, ..Settings::default() })
                }
                .unwrap();
                let (address, length) = statics.map_or((0, 0), |one| (one.address, one.bytes));
                let world = World::new(ucx, address, length).unwrap();
                world.barrier_all().unwrap();
                body(world);
                client.report_finished();
            });
        }
    });
}

/// Checks that this PE's processor carries out atomics if all used transports are over shared memory.
fn check_direct_atomics(ucx: &Ucx) {
    let methods = ucx.shared.methods();
    let shared_memory = |name: &String| ["self", "sysv", "posix", "xpmem"].contains(&name.as_str());
    if methods.iter().all(shared_memory) {
        for (pe, peer) in ucx.shared.peers.iter().enumerate() {
            let reached = ucx.shared.handles().endpoints[pe].is_some();
            assert!(!reached || peer.direct_atomics.load(Ordering::Relaxed), "PE {pe} over {methods:?}");
        }
    }
}

#[test]
fn every_operation_gives_the_right_result() {
    for pes in [1, 2, 3] {
        job("every_operation_gives_the_right_result", pes, false, |mut world| {
            if world.pes() > 1 {
                crate::check::run(&world, 2).unwrap();
            }
            if world.pes() >= FEW.1 {
                world.scattered_from = FEW;
                broadcasts_in_slices(&world);
            }
            world.barrier_all().unwrap();
            check_direct_atomics(world.transport());
            world.leave().unwrap();
            eprintln!("{:?}", world.transport().capabilities());
        });
    }
}
