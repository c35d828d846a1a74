//! Tests on synthetic measurements. The rates behind them come from a simulation of a fair queue that shares no code
//! with the model: it gives each load a small quantum in turns.

use super::*;

/// A generator of pseudo-random numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Returns a factor within `noise` of 1.
    fn factor(&mut self, noise: f64) -> f64 {
        1.0 + noise * (2.0 * self.next() - 1.0)
    }
}

/// Shares capacities by turns: each load that has not reached its rate takes a quantum if all its resources have
/// room.
fn simulate(capacities: &[f64], loads: &[(f64, Vec<f64>)]) -> Vec<f64> {
    const TURNS: f64 = 3_000.0;
    let mut left = capacities.to_vec();
    let mut rates = vec![0.0; loads.len()];
    let quantum = loads.iter().map(|load| load.0).fold(0.0, f64::max) / TURNS;
    loop {
        let mut any = false;
        for (rate, (solo, uses)) in rates.iter_mut().zip(loads) {
            let fits = uses.iter().zip(&left).all(|(per_byte, left)| per_byte * quantum <= *left);
            if *rate + quantum <= *solo && fits {
                *rate += quantum;
                left.iter_mut().zip(uses).for_each(|(left, per_byte)| *left -= per_byte * quantum);
                any = true;
            }
        }
        if !any {
            return rates;
        }
    }
}

#[test]
fn a_ladder_gives_use_and_capacity() {
    // The load takes 2.5 units a byte and reaches 10 alone. The resource has 100 units.
    let points: Vec<(f64, f64)> = (0..20)
        .map(|step| (f64::from(step) * 5.0, 10f64.min((100.0 - f64::from(step) * 5.0) / 2.5)))
        .collect();
    let ladder = Ladder::fit(&points).unwrap();
    assert!((ladder.per_byte - 2.5).abs() < 1e-6 && (ladder.capacity - 100.0).abs() < 1e-6, "{ladder:?}");
    assert!((ladder.solo.unwrap() - 10.0).abs() < 1e-6);
    assert!(ladder.interval.0 <= 2.5 + 1e-6 && ladder.interval.1 >= 2.5 - 1e-6);
}

#[test]
fn a_noisy_ladder_is_within_its_interval() {
    let mut random = Random(1);
    let mut inside = 0;
    for _ in 0..200 {
        let (per_byte, capacity) = (1.0 + 2.0 * random.next(), 80.0 + 40.0 * random.next());
        let points: Vec<(f64, f64)> = (0..16)
            .map(|step| {
                let antagonist = f64::from(step) * capacity / 16.0;
                (antagonist, 25f64.min((capacity - antagonist) / per_byte).max(0.5) * random.factor(0.02))
            })
            .collect();
        let ladder = Ladder::fit(&points).unwrap();
        assert!((ladder.per_byte / per_byte - 1.0).abs() < 0.12, "{ladder:?} and not {per_byte}");
        assert!((ladder.capacity / capacity - 1.0).abs() < 0.06, "{ladder:?} and not {capacity}");
        inside += usize::from((ladder.interval.0..=ladder.interval.1).contains(&per_byte));
    }
    assert!(inside > 160, "{inside} of 200");
}

#[test]
fn measurements_without_a_slope_are_refused() {
    let mut random = Random(3);
    let flat: Vec<(f64, f64)> = (0..10).map(|step| (f64::from(step), 10.0 * random.factor(0.03))).collect();
    assert!(matches!(Ladder::fit(&flat), Err(FitError::NotSaturated { .. })), "{:?}", Ladder::fit(&flat));
    assert_eq!(Ladder::fit(&flat[..2]), Err(FitError::TooFew { found: 2, least: 4 }));
    let bad = [(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 1.0)];
    assert!(matches!(Ladder::fit(&bad), Err(FitError::Value { index: 1, .. })));
    assert_eq!(Ladder::fit(&[(1.0, 1.0); 5]), Err(FitError::Undetermined));
    let rising = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)];
    assert!(Ladder::fit(&rising).is_err());
}

#[test]
fn loops_solo_curves_and_write_shares_are_fitted() {
    let sweep: Vec<(f64, f64)> =
        (0..8).map(|power| (2f64.powi(power), (2f64.powi(power) / 0.5).min(40.0))).collect();
    let fitted = Loop::fit(&sweep).unwrap();
    assert!((fitted.latency - 0.5).abs() < 1e-9 && fitted.plateau == Some(40.0), "{fitted:?}");
    assert_eq!(Loop::fit(&sweep[..4]).unwrap().plateau, None);

    let solo = Solo::new(&[(1.0, 10.0), (2.0, 19.0), (2.0, 21.0), (2.0, 20.0), (4.0, 30.0)]).unwrap();
    assert_eq!(
        [0.5, 1.0, 1.5, 2.0, 3.0, 9.0].map(|cores| solo.rate(cores)),
        [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    );
    assert!(Solo::new(&[]).is_err());

    let memory = WriteShare::fit(100.0, 70.0, 60.0).unwrap();
    for (share, capacity) in [(0.0, 100.0), (0.5, 70.0), (1.0, 60.0)] {
        assert!((memory.capacity(share) - capacity).abs() < 1e-9);
    }
}

/// Fits loads from solo runs and ladders only, and predicts pairs that no fit has seen.
#[test]
fn held_out_mixes_are_predicted() {
    let mut random = Random(11);
    let (mut errors, mut naive, mut mixes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..10 {
        // Memory, one direction of a link, and cores.
        let capacities = [100.0, 55.0, 40.0].map(|capacity| capacity * (0.8 + 0.4 * random.next()));
        let loads: Vec<(f64, Vec<f64>)> = (0..4)
            .map(|_| {
                let uses: Vec<f64> = (0..3).map(|_| 0.4 + 2.0 * random.next()).collect();
                let most = uses.iter().zip(&capacities).map(|(per_byte, capacity)| capacity / per_byte);
                (most.fold(f64::INFINITY, f64::min) * (0.5 + 0.5 * random.next()), uses)
            })
            .collect();
        // Measure: each load alone, and beside an antagonist of each resource at 16 paces.
        let mut ladders: Vec<Vec<Ladder>> = vec![Vec::new(); 3];
        let mut alones: Vec<Vec<f64>> = vec![Vec::new(); 3];
        let mut fitted: Vec<Load> = Vec::new();
        for (solo, uses) in &loads {
            let mut load = Load { solo: solo * random.factor(0.01), uses: vec![0.0; 3] };
            for resource in 0..3 {
                let points: Vec<(f64, f64)> = (0..16)
                    .map(|step| {
                        let pace = capacities[resource] * f64::from(step) / 15.0;
                        let mut antagonist = (pace, vec![0.0; 3]);
                        antagonist.1[resource] = 1.0;
                        let rates = simulate(&capacities, &[(*solo, uses.clone()), antagonist]);
                        (rates[1] * random.factor(0.01), rates[0] * random.factor(0.01))
                    })
                    .collect();
                let alone = capacities[resource] * random.factor(0.01);
                let (beside, rate) = points[points.len() - 1];
                match Ladder::fit(&points) {
                    Ok(ladder) => {
                        load.uses[resource] = ladder.per_byte;
                        ladders[resource].push(ladder);
                    }
                    Err(_) => load.uses[resource] = use_below_share(alone, beside, rate).unwrap(),
                }
                alones[resource].push(alone);
            }
            fitted.push(load);
        }
        let capacity = |(ladders, alone): (&Vec<Ladder>, &Vec<f64>)| {
            Resource::new(capacity(ladders).unwrap_or(median(alone.iter().copied())))
        };
        let resources = ladders.iter().zip(&alones).map(capacity).collect();
        let system = System { resources, loads: fitted };
        let predicted = system.predict_mixes().unwrap();
        assert_eq!(predicted.len(), 7, "six pairs and all together");
        for (together, solution) in predicted {
            let mix: Vec<_> = together.iter().map(|load| loads[*load].clone()).collect();
            for ((flow, measured), load) in
                solution.flows.iter().zip(simulate(&capacities, &mix)).zip(&together)
            {
                if measured < 0.9 * loads[*load].0 {
                    errors.push((flow.rate / measured - 1.0).abs());
                    naive.push((loads[*load].0 / measured - 1.0).abs());
                    mixes += 1;
                }
            }
        }
    }
    let (error, naive) = (median(errors.into_iter()), median(naive.into_iter()));
    eprintln!("median error {error:.4}, without interference {naive:.4}, {mixes} degraded rates");
    assert!(mixes > 40 && error < 0.05 && error < naive / 4.0, "{error} and {naive}");
}
