//! Tests of the UCX transport. Threads of the test process act as the PEs. UCX uses shared memory between
//! them, or TCP if the process was started with `UCX_TLS=tcp,self`.

use super::buffered::MOST_UNFINISHED;
use super::{Settings, Ucx};
use crate::error::Error;
use crate::transport::Transport;
use crate::transport::bootstrap::{Exchange, JobControl};
use crate::transport::rendezvous::{Client, Server};
use crate::world::World;
use crate::world::broadcast_tests::{broadcast_all, sequences};
use crate::world::tests::{FEW, broadcasts_in_slices};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs `body` as each of `pes` PEs. Operations may take as long as `limit`. Returns without a test if UCX is
/// missing.
fn job(name: &str, pes: u32, limit: Option<Duration>, body: impl Fn(World<Ucx>) + Sync) {
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
                let bytes = World::<Ucx>::symmetric_bytes(pes, 0, 4 << 20);
                let exchange: Arc<dyn Exchange> = client.clone();
                let settings = Settings { yields: true, request_timeout: limit, ..Settings::default() };
                // SAFETY: there are no static objects.
                let ucx = unsafe { Ucx::connect(exchange, bytes, None, settings) }.unwrap();
                let world = World::new(ucx, 0, 0).unwrap();
                world.barrier_all().unwrap();
                body(world);
                client.report_finished();
            });
        }
    });
}

/// Checks that this PE's processor carries out atomics if all used transports are over shared memory.
fn check_direct_atomics(ucx: &Ucx) {
    let methods = ucx.worker.methods();
    let shared_memory = |name: &String| ["self", "sysv", "posix", "xpmem"].contains(&name.as_str());
    if methods.iter().all(shared_memory) {
        for (pe, peer) in ucx.worker.peers.iter().enumerate() {
            let reached = ucx.worker.handles().endpoints[pe].is_some();
            assert!(!reached || peer.direct_atomics.load(Ordering::Relaxed), "PE {pe} over {methods:?}");
        }
    }
}

#[test]
fn every_operation_gives_the_right_result() {
    for pes in [1, 2, 3] {
        job("every_operation_gives_the_right_result", pes, None, |mut world| {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn no_broadcast_is_taken_for_another(pes in 2..5u32, steps in sequences()) {
        job("no_broadcast_is_taken_for_another", pes, None, |mut world| {
            world.scattered_from = FEW;
            broadcast_all(&world, &steps);
            world.leave().unwrap();
        });
    }
}

#[test]
fn an_operation_that_finds_no_room_is_named_by_its_error() {
    let limit = Some(Duration::from_millis(20));
    job("an_operation_that_finds_no_room_is_named_by_its_error", 2, limit, |world| {
        let (ucx, peer) = (world.transport(), 1 - world.me());
        // Notifications to PEs whose memory is mapped find room in any case.
        ucx.worker.peers[peer as usize].direct.store(std::ptr::null_mut(), Ordering::Release);
        ucx.worker.flows[peer as usize].unfinished.store(MOST_UNFINISHED, Ordering::Relaxed);
        let named = |error| matches!(error, Err(Error::Timeout { what: "a notification", .. }));
        assert!(named(ucx.notify(peer)));
    });
}

#[test]
fn after_an_error_no_operation_waits_for_room() {
    let limit = Some(Duration::from_secs(5));
    job("after_an_error_no_operation_waits_for_room", 2, limit, |world| {
        let (ucx, peer) = (world.transport(), 1 - world.me());
        ucx.worker.peers[peer as usize].direct.store(std::ptr::null_mut(), Ordering::Release);
        ucx.worker.flows[peer as usize].unfinished.store(MOST_UNFINISHED, Ordering::Relaxed);
        ucx.worker.broken.store(true, Ordering::Release);
        let outcome = ucx.notify(peer);
        assert!(matches!(outcome, Err(Error::LinkLost { .. })), "{outcome:?}");
    });
}
