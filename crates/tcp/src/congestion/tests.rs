use super::*;
use crate::MILLISECOND;

const MSS: u32 = 1000;

fn ack(now: u64, bytes: u64) -> Ack {
    Ack { now, bytes, srtt: 100 * MILLISECOND, rtt: None, una: 0, next: 0, limited: true }
}

fn run(congestion: &mut Congestion, mut now: u64, end: u64) {
    while now < end {
        now += 100 * MILLISECOND;
        let segments = congestion.window() / MSS as u64;
        for _ in 0..segments {
            congestion.on_ack(&ack(now, MSS as u64), MSS);
        }
    }
}

#[test]
fn rfc9293_slow_start_doubles_the_window_each_round_trip() {
    let mut congestion = Congestion::new(10_000);
    run(&mut congestion, 0, 300 * MILLISECOND);
    assert_eq!(congestion.window(), 80_000);
    congestion.on_ack(&Ack { limited: false, ..ack(0, 1000) }, MSS);
    assert_eq!(congestion.window(), 80_000, "an unused window does not grow");
}

fn reduced() -> Congestion {
    let mut congestion = Congestion::new(1_000_000);
    congestion.on_congestion(MSS);
    congestion.set_window(congestion.threshold(), MSS);
    assert_eq!(congestion.window(), 700_000);
    congestion
}

#[test]
fn rfc9438_the_window_reaches_its_former_size_after_k_seconds() {
    // K, the time until CUBIC regains its former maximum, is the cube root of (1000 - 700) / 0.4: 9.09 s.
    let mut congestion = reduced();
    run(&mut congestion, 0, 4 * SECOND);
    let early = congestion.window();
    run(&mut congestion, 4 * SECOND, 9 * SECOND);
    let at_k = congestion.window();
    run(&mut congestion, 9 * SECOND, 14 * SECOND);
    let late = congestion.window();
    assert!((900_000..960_000).contains(&early), "concave: most of the growth is early: {early}");
    assert!((990_000..1_005_000).contains(&at_k), "{at_k}");
    assert!((1_030_000..1_090_000).contains(&late), "convex: C (14 - 9.09)^3 = 47 segments: {late}");
}

#[test]
fn rfc9438_a_second_loss_below_the_former_maximum_releases_bandwidth() {
    let mut congestion = reduced();
    congestion.on_congestion(MSS);
    assert_eq!(congestion.cubic.w_max, 700_000.0 * 0.85);
    assert_eq!(congestion.threshold(), 489_999);
}

#[test]
fn rfc9438_a_small_window_grows_at_least_as_fast_as_reno() {
    let mut congestion = Congestion::new(10_000);
    congestion.on_congestion(MSS);
    congestion.set_window(congestion.threshold(), MSS);
    run(&mut congestion, 0, 2 * SECOND);
    // In the Reno-friendly region (RFC 9438, section 4.3), the window grows by 0.53 segments per round trip
    // below the former maximum, and by 1 segment above it. The test runs 20 round trips.
    assert!((17_000..25_000).contains(&congestion.window()), "{}", congestion.window());
}

#[test]
fn rfc9438_time_without_use_does_not_count() {
    let mut idle = reduced();
    run(&mut idle, 0, SECOND);
    let mut busy = idle.clone();
    for n in 0..100 {
        idle.on_ack(&Ack { limited: false, ..ack(SECOND + n * 100 * MILLISECOND, 1000) }, MSS);
    }
    run(&mut idle, 11 * SECOND, 12 * SECOND);
    run(&mut busy, SECOND, 2 * SECOND);
    let difference = idle.window().abs_diff(busy.window());
    assert!(difference < 30_000, "{} {}", idle.window(), busy.window());
}

#[test]
fn rfc6298_a_timeout_leaves_one_segment_and_a_second_one_keeps_the_threshold() {
    let mut congestion = Congestion::new(100_000);
    congestion.on_timeout(MSS, true);
    assert_eq!((congestion.window(), congestion.threshold()), (1000, 70_000));
    congestion.on_timeout(MSS, false);
    assert_eq!(congestion.threshold(), 70_000);
}

#[test]
fn rfc4015_an_undone_reduction_restores_window_and_threshold() {
    let mut congestion = Congestion::new(100_000);
    let saved = congestion.save();
    congestion.on_timeout(MSS, true);
    congestion.restore(&saved);
    assert_eq!((congestion.window(), congestion.threshold()), (100_000, u64::MAX));
}

fn round(congestion: &mut Congestion, number: u64, rtt: u64) {
    for n in 0..10 {
        let una = number * 10 + n;
        let next = (number + 1) * 10;
        congestion.on_ack(&Ack { rtt: Some(rtt), una, next, ..ack(number * rtt, 1000) }, MSS);
    }
}

#[test]
fn rfc9406_a_rising_rtt_ends_slow_start_after_five_conservative_rounds() {
    let mut congestion = Congestion::new(10_000);
    for number in 1..=3 {
        round(&mut congestion, number, 50 * MILLISECOND);
    }
    let before = congestion.window();
    round(&mut congestion, 4, 60 * MILLISECOND);
    assert!(congestion.hystart.css_baseline.is_some());
    assert!(congestion.window() - before < 10_000, "a quarter of the growth once the rise is seen");
    for number in 5..=9 {
        assert!(congestion.slow_start());
        round(&mut congestion, number, 60 * MILLISECOND);
    }
    assert!(!congestion.slow_start());
}

#[test]
fn rfc9406_slow_start_resumes_if_the_rtt_falls_again() {
    let mut congestion = Congestion::new(10_000);
    for (number, rtt) in [(1, 50), (2, 50), (3, 60), (4, 50)] {
        round(&mut congestion, number, rtt * MILLISECOND);
    }
    assert!(congestion.hystart.css_baseline.is_none());
    assert!(congestion.slow_start());
}
