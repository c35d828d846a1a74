use super::*;

fn pattern(region: &Region, seed: u8) {
    for (index, byte) in bytes(region).iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(7).wrapping_add((index >> 8) as u8) ^ seed;
    }
}

#[allow(clippy::mut_from_ref, reason = "tests own their regions")]
fn bytes(region: &Region) -> &mut [u8] {
    // SAFETY: only one test uses this memory. The DMA engine accesses it only while a transfer is in flight.
    unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), region.len()) }
}

fn pair(length: usize) -> (Region, Region) {
    let (source, destination) = (Region::host(length).unwrap(), Region::host(length).unwrap());
    pattern(&source, 3);
    bytes(&destination).fill(0xEE);
    (source, destination)
}

fn engine(costs: DmaCosts) -> DmaEngine {
    DmaEngine::new("twin:0 dma", costs).unwrap()
}

#[test]
fn every_completion_mode_delivers_all_bytes() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut engine = engine(DmaCosts::unlimited());
        for length in [1, 4096, 1 << 20] {
            let (source, destination) = pair(length);
            for _ in 0..4 {
                bytes(&destination).fill(0xEE);
                let ticket = engine.submit(&source, &destination).unwrap();
                engine.wait(ticket, completion).unwrap();
                assert_eq!(bytes(&source), bytes(&destination), "{completion} {length}");
            }
        }
    }
}

#[test]
fn transfers_take_at_least_the_time_of_the_model() {
    let costs = DmaCosts { to_device: 50e6, per_transfer: Duration::from_millis(2), ..DmaCosts::unlimited() };
    let mut engine = engine(costs);
    let (source, destination) = pair(1 << 20);
    let began = Instant::now();
    engine.submit(&source, &destination).unwrap();
    let (source, destination) = pair(1 << 20);
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Adaptive).unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_micros(45_900), "two transfers of 2 ms and 20.97 ms: {took:?}");
}

#[test]
fn a_lost_interrupt_only_delays_the_transfer() {
    let costs = DmaCosts { per_transfer: Duration::from_millis(30), ..DmaCosts::unlimited() };
    let mut engine = engine(costs);
    engine.faults().swallow_interrupts(1);
    let (source, destination) = pair(4096);
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Interrupt).unwrap();
    assert_eq!(engine.recovered_interrupts(), 1);
    assert_eq!(bytes(&source), bytes(&destination));
}

#[test]
fn a_lost_device_fails_every_wait_and_submit() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut engine = engine(DmaCosts::unlimited());
        engine.faults().lose_after(1_000_000);
        let (source, destination) = pair(4 << 20);
        let ticket = engine.submit(&source, &destination).unwrap();
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(error.contains("twin:0 dma") && error.contains("lost"), "{error}");
        assert!(engine.submit(&source, &destination).is_err());
        assert!(engine.done().is_err());
        assert_eq!(bytes(&destination)[1_000_000], 0xEE, "bytes were copied after the loss");
    }
}

#[test]
fn a_stalled_device_counts_as_lost_after_the_timeout() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut engine = engine(DmaCosts::unlimited());
        engine.set_timeout(Duration::from_millis(60));
        engine.faults().stall(true);
        let (source, destination) = pair(4096);
        let ticket = engine.submit(&source, &destination).unwrap();
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(error.contains("not completed"), "{error}");
    }
}

#[test]
fn a_flipped_bit_changes_the_destination_once() {
    let mut engine = engine(DmaCosts::unlimited());
    engine.faults().flip_bits(1);
    let (source, destination) = pair(4096);
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Poll).unwrap();
    assert_ne!(bytes(&source), bytes(&destination));
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Poll).unwrap();
    assert_eq!(bytes(&source), bytes(&destination));
}

#[test]
fn dropping_the_engine_cancels_transfers() {
    let mut engine = engine(DmaCosts { to_device: 1e6, ..DmaCosts::unlimited() });
    let (source, destination) = pair(64 << 20);
    engine.submit(&source, &destination).unwrap();
    let began = Instant::now();
    drop(engine);
    assert!(began.elapsed() < Duration::from_secs(30), "the transfer would take 67 s in the model");
}

#[test]
fn unreachable_regions_are_refused() {
    let mut engine = engine(DmaCosts::unlimited());
    let host = Region::host(4096).unwrap();
    // SAFETY: the engine refuses the region, so nothing accesses it.
    let gpu = unsafe { Region::from_raw(1 << 40, 4096, Location::Gpu(0), Arc::new(())) };
    assert!(engine.submit(&host, &gpu).unwrap_err().to_string().contains("cannot copy from host to gpu:0"));
    assert!(engine.submit(&host, &host).unwrap_err().to_string().contains("overlap"));
    assert!(engine.wait(Ticket(1), CompletionMode::Interrupt).is_err());
}
