use super::*;

fn pattern(region: &Region, seed: u8) {
    for (index, byte) in bytes(region).iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(7).wrapping_add((index >> 8) as u8) ^ seed;
    }
}

#[allow(clippy::mut_from_ref, reason = "tests own their regions")]
fn bytes(region: &Region) -> &mut [u8] {
    // SAFETY: host memory of the region's length, used by one test, and by the engine only while it is in flight.
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
fn every_completion_delivers_every_byte() {
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
fn takes_the_time_of_its_model() {
    let costs = DmaCosts { to_device: 50e6, per_transfer: Duration::from_millis(2), ..DmaCosts::unlimited() };
    let mut engine = engine(costs);
    let (source, destination) = pair(1 << 20);
    let began = Instant::now();
    engine.submit(&source, &destination).unwrap();
    let (source, destination) = pair(1 << 20);
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Adaptive).unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_micros(45_900), "two of 2 ms and 20.97 ms: {took:?}");
}

#[test]
fn a_lost_interrupt_costs_a_moment_not_the_run() {
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
fn a_device_lost_in_the_middle_fails_every_wait_and_submit() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut engine = engine(DmaCosts::unlimited());
        engine.faults().lose_after(1_000_000);
        let (source, destination) = pair(4 << 20);
        let ticket = engine.submit(&source, &destination).unwrap();
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(error.contains("twin:0 dma") && error.contains("lost"), "{error}");
        assert!(engine.submit(&source, &destination).is_err());
        assert!(engine.done().is_err());
        assert_eq!(bytes(&destination)[1_000_000], 0xEE, "nothing after the loss");
    }
}

#[test]
fn a_stalled_device_is_given_up_after_the_patience() {
    for completion in [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive] {
        let mut engine = engine(DmaCosts::unlimited());
        engine.set_patience(Duration::from_millis(60));
        engine.faults().stall(true);
        let (source, destination) = pair(4096);
        let ticket = engine.submit(&source, &destination).unwrap();
        let error = engine.wait(ticket, completion).unwrap_err().to_string();
        assert!(error.contains("not completed"), "{error}");
    }
}

#[test]
fn a_flipped_bit_is_there_to_be_found() {
    let mut engine = engine(DmaCosts::unlimited());
    engine.faults().flip_bytes(1);
    let (source, destination) = pair(4096);
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Poll).unwrap();
    assert_ne!(bytes(&source), bytes(&destination));
    let ticket = engine.submit(&source, &destination).unwrap();
    engine.wait(ticket, CompletionMode::Poll).unwrap();
    assert_eq!(bytes(&source), bytes(&destination));
}

#[test]
fn dropping_it_cancels_at_once() {
    let mut engine = engine(DmaCosts { to_device: 1e6, ..DmaCosts::unlimited() });
    let (source, destination) = pair(64 << 20);
    engine.submit(&source, &destination).unwrap();
    let began = Instant::now();
    drop(engine);
    assert!(began.elapsed() < Duration::from_secs(2), "the model's transfer would take 67 s");
}

#[test]
fn refuses_what_it_cannot_reach() {
    let mut engine = engine(DmaCosts::unlimited());
    let host = Region::host(4096).unwrap();
    // SAFETY: never dereferenced: the engine refuses it.
    let gpu = unsafe { Region::from_raw(1 << 40, 4096, Location::Gpu(0), Arc::new(())) };
    assert!(engine.submit(&host, &gpu).unwrap_err().to_string().contains("cannot copy from host to gpu:0"));
    assert!(engine.submit(&host, &host).unwrap_err().to_string().contains("overlap"));
    assert!(engine.wait(Ticket(1), CompletionMode::Interrupt).is_err());
}
