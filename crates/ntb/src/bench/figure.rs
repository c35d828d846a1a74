//! From points to result documents: the rows, and the published figure (bandwidth against size by completion).

use super::{Operation, Point};
use inlane_core::completion::Completion;
use inlane_core::result::TransferResult;
use inlane_core::stats::Summary;
use std::collections::BTreeMap;

fn median(values: &[f64]) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

/// The points as transfer results; put shares are of the plain copy of that size.
pub fn results(points: &[Point]) -> Vec<TransferResult> {
    let plain: BTreeMap<u64, f64> = points
        .iter()
        .filter(|point| point.operation == Operation::PlainCopy)
        .filter_map(|point| Some((point.size_bytes, median(&point.bytes_per_second)?)))
        .collect();
    points
        .iter()
        .filter(|point| point.operation != Operation::Idle)
        .map(|point| {
            let issued =
                matches!(point.operation, Operation::Put | Operation::PeerPut | Operation::PlainCopy);
            let rate = median(&point.bytes_per_second);
            let share = rate.zip(plain.get(&point.size_bytes)).map(|(rate, plain)| rate / plain);
            TransferResult {
                from: "pe 0".into(),
                to: "pe 1".into(),
                parameters: BTreeMap::from([("operation".to_string(), point.operation.name().to_string())]),
                size_bytes: point.size_bytes,
                path: point.path.clone(),
                completion: point.completion.parse().unwrap_or(Completion::Poll),
                latency_ns: if issued { None } else { Summary::of(&point.latency_ns) },
                bytes_per_second: if point.size_bytes > 0 {
                    Summary::of(&point.bytes_per_second)
                } else {
                    None
                },
                operations_per_second: Summary::of(&point.operations_per_second),
                share_of_ceiling: if point.operation == Operation::Put { share } else { None },
                cpu_seconds_per_gigabyte: point.cpu_seconds_per_gigabyte,
                mover_cpu_seconds_per_gigabyte: point.mover_cpu_seconds_per_gigabyte,
                verified_bytes: point.verified_bytes,
            }
        })
        .collect()
}

/// The lines of the figure: for each completion, (size, gigabytes a second) of `operation`.
pub fn figure(points: &[Point], operation: Operation) -> Vec<(String, Vec<(f64, f64)>)> {
    ["poll", "adaptive", "interrupt"]
        .into_iter()
        .map(|completion| {
            let line = points
                .iter()
                .filter(|point| point.operation == operation && point.completion == completion)
                .filter_map(|point| Some((point.size_bytes as f64, median(&point.bytes_per_second)? / 1e9)))
                .collect();
            (completion.to_string(), line)
        })
        .collect()
}

/// Medians of the bytes a second of `operation`, by size.
fn rates(points: &[Point], operation: Operation, completion: &str) -> BTreeMap<u64, f64> {
    points
        .iter()
        .filter(|point| point.operation == operation && point.completion == completion)
        .filter_map(|point| Some((point.size_bytes, median(&point.bytes_per_second)?)))
        .collect()
}

fn latency(points: &[Point], operation: Operation) -> Option<f64> {
    median(&points.iter().find(|point| point.operation == operation)?.latency_ns)
}

/// The most that an adaptive wait for the mover takes of a polling one's processor time, from 4 MiB.
fn waiting_share(points: &[Point]) -> Option<f64> {
    let of = |completion: &str| {
        let points = points.iter().filter(move |point| {
            point.operation == Operation::PutByMover
                && point.completion == completion
                && point.size_bytes >= 4 << 20
        });
        points
            .filter_map(|point| Some((point.size_bytes, point.cpu_seconds_per_gigabyte?)))
            .collect::<BTreeMap<_, _>>()
    };
    let poll = of("poll");
    of("adaptive").iter().filter_map(|(size, cpu)| Some(cpu / poll.get(size)?)).reduce(f64::max)
}

/// What the points say of the aims, a sentence each.
pub fn findings(points: &[Point]) -> Vec<String> {
    let mut findings = Vec::new();
    let put = rates(points, Operation::Put, "poll");
    let plain = rates(points, Operation::PlainCopy, "poll");
    let least = put
        .iter()
        .filter(|(size, _)| **size >= 1 << 20)
        .filter_map(|(size, rate)| Some((rate / plain.get(size)?, *size)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((share, size)) = least {
        findings.push(format!(
            "from 1 MiB, put is at least {:.1} % of a plain copy (at {})",
            share * 100.0,
            inlane_core::units::bytes(size)
        ));
    }
    if let (Some(put), Some(floor)) =
        (latency(points, Operation::OneWay), latency(points, Operation::CacheToCache))
    {
        findings.push(format!(
            "8 bytes one way: {put:.0} ns, {:.2} times cache to cache ({floor:.0} ns)",
            put / floor
        ));
    }
    let peer = rates(points, Operation::PeerPut, "poll");
    let ratios: Vec<(f64, u64)> = peer
        .iter()
        .filter(|(size, _)| **size >= 8)
        .filter_map(|(size, rate)| Some((put.get(size)? / rate, *size)))
        .collect();
    if let Some(worst) = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
        let mean = (ratios.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        findings.push(format!(
            "against the peer's put, from 8 B: geometric mean {mean:.2}, least {:.2} at {}",
            worst.0,
            inlane_core::units::bytes(worst.1)
        ));
    }
    for (completion, busy) in points
        .iter()
        .filter(|point| point.operation == Operation::Idle)
        .filter_map(|p| Some((&p.completion, p.busy?)))
    {
        findings.push(format!("idle, a wait by {completion} takes {:.2} % of a processor", busy * 100.0));
    }
    if let Some(share) = waiting_share(points) {
        findings.push(format!(
            "put by mover, from 4 MiB: adaptive's waiting thread takes at most {:.0} % of polling's processor time",
            share * 100.0
        ));
    }
    for operation in
        [Operation::PutByMover, Operation::PutDelivered, Operation::Exchange, Operation::GetPushed]
    {
        let poll = rates(points, operation, "poll");
        for (completion, from) in [("adaptive", 64 << 10), ("interrupt", 1u64)] {
            let shares: Vec<f64> = rates(points, operation, completion)
                .iter()
                .filter(|(size, _)| **size >= from)
                .filter_map(|(size, rate)| Some(rate / poll.get(size)?))
                .collect();
            let least = shares.iter().copied().reduce(f64::min);
            let most = shares.iter().copied().reduce(f64::max);
            if let (Some(least), Some(most)) = (least, most) {
                findings.push(format!(
                    "{}: {completion} reaches {:.0} % to {:.0} % of polling's bandwidth from {}",
                    operation.name(),
                    least * 100.0,
                    most * 100.0,
                    inlane_core::units::bytes(from)
                ));
            }
        }
    }
    findings
}
