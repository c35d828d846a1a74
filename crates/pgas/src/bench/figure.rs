//! Turns measurements (`Point`) into rows, findings and the lines of the figure (bandwidth against size by
//! completion mode).

use super::series::FEWEST_SAMPLES;
use super::{CeilingOf, Delivery, MeasuredOperation, Note, Point, WindowResult};
use inlane_core::completion::CompletionMode;
use inlane_core::stats::{LatencyHistogram, Summary};
use inlane_result::{ByteVerification, Ceiling, PathExplanation};
use std::collections::BTreeMap;

fn median(values: &[f64]) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

/// Returns the median ratio of two cases whose repeats took turns. Each ratio compares a repeat of `one` with
/// the neighbouring repeat of `other`, so other load on the machine affects both alike.
fn ratio(one: &Point, other: &Point) -> Option<f64> {
    let pairs = one.bytes_per_second.iter().zip(&other.bytes_per_second);
    median(&pairs.map(|(one, other)| one / other).collect::<Vec<_>>())
}

fn find<'a>(
    points: &'a [Point],
    operation: MeasuredOperation,
    completion: &str,
    size: u64,
) -> Option<&'a Point> {
    points.iter().find(|point| {
        point.operation == operation && point.completion == completion && point.size_bytes == size
    })
}

/// Takes the points of `operation` with at least `from` bytes. Divides the bandwidth of each point by that of
/// the point that `other` returns for it. Returns each ratio with the size in bytes.
fn ratios<'a>(
    points: &'a [Point],
    operation: MeasuredOperation,
    completion: &str,
    from: u64,
    other: impl Fn(&Point) -> Option<&'a Point>,
) -> Vec<(f64, u64)> {
    points
        .iter()
        .filter(|point| {
            point.operation == operation && point.completion == completion && point.size_bytes >= from
        })
        .filter_map(|point| Some((ratio(point, other(point)?)?, point.size_bytes)))
        .collect()
}

fn least(ratios: &[(f64, u64)]) -> Option<(f64, u64)> {
    ratios.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))
}

const COMPARED: &str = "the receiver compares every byte of a case's last transfer";
const COUNTED: &str = "each side compares every word that it receives";

/// Returns the points as rows of the result. All rows get `path`'s hops and the reason for its choice.
pub fn results(points: &[Point], path: &PathExplanation) -> Vec<WindowResult> {
    let measured = points.iter().filter(|point| point.operation != MeasuredOperation::Idle);
    measured.map(|point| row(point, points, path)).collect()
}

fn row(point: &Point, points: &[Point], path: &PathExplanation) -> WindowResult {
    use MeasuredOperation::*;
    let issued = matches!(point.operation, Put | PeerPut | PlainCopy | PutBothWays);
    let alone = !issued && point.operation != Messages;
    let bounded = matches!(point.operation, Put | PutDelivered | Get | GetPushed | Messages);
    let plain = find(points, PlainCopy, "poll", point.size_bytes).filter(|_| bounded);
    let share = plain.and_then(|plain| match point.operation {
        // Repeats of put and plain copy alternated, so compare them in pairs.
        Put => ratio(point, plain),
        _ => Some(median(&point.bytes_per_second)? / median(&plain.bytes_per_second)?),
    });
    let mut histogram = LatencyHistogram::default();
    point.samples_ns.iter().for_each(|sample| histogram.record(*sample, 1));
    let method = match point.operation {
        _ if point.verified_bytes == 0 => "",
        OneWay | CacheToCache => COUNTED,
        _ => COMPARED,
    };
    WindowResult {
        operation: point.operation,
        from: "PE 0".into(),
        to: "PE 1".into(),
        size_bytes: point.size_bytes,
        completion: point.completion.parse().unwrap_or(CompletionMode::Poll),
        delivery: if issued { Delivery::Issued } else { Delivery::Delivered },
        path: PathExplanation { name: point.path.clone(), ..path.clone() },
        latency_ns: if alone { Summary::of(&point.latency_ns) } else { None },
        latency_percentiles: histogram
            .percentiles()
            .filter(|_| alone && point.samples_ns.len() >= FEWEST_SAMPLES),
        bytes_per_second: if point.size_bytes > 0 { Summary::of(&point.bytes_per_second) } else { None },
        operations_per_second: Summary::of(&point.operations_per_second),
        ceiling: plain.map(|plain| Ceiling {
            resource: CeilingOf::PlainCopy,
            bytes_per_second: median(&plain.bytes_per_second),
            packets_per_second: None,
        }),
        share_of_ceiling: share,
        cpu_seconds_per_gigabyte: point.cpu_seconds_per_gigabyte,
        mover_cpu_seconds_per_gigabyte: point.mover_cpu_seconds_per_gigabyte,
        verification: ByteVerification {
            method: method.into(),
            transferred_bytes: point.transferred_bytes,
            verified_bytes: point.verified_bytes,
            altered_bytes: 0,
        },
        error: None,
    }
}

/// Returns the lines of the figure: for each completion mode, (size, GB/s) of `operation`.
pub fn figure(points: &[Point], operation: MeasuredOperation) -> Vec<(String, Vec<(f64, f64)>)> {
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

fn latency(points: &[Point], operation: MeasuredOperation) -> Option<f64> {
    median(&points.iter().find(|point| point.operation == operation)?.latency_ns)
}

/// Returns the processor time of adaptive waits for the mover, divided by the processor time of polling
/// waits. Considers transfers of at least 4 MiB and returns the largest share.
fn waiting_share(points: &[Point]) -> Option<f64> {
    let of = |completion: &str| {
        let points = points.iter().filter(move |point| {
            point.operation == MeasuredOperation::PutByMover
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

/// Returns conclusions from the points. For example, one compares puts with a plain copy and gives the lowest
/// ratio of their bandwidths.
pub fn findings(points: &[Point]) -> Vec<Note> {
    let mut findings = Vec::new();
    let plain = |point: &Point| find(points, MeasuredOperation::PlainCopy, "poll", point.size_bytes);
    let of_plain = least(&ratios(points, MeasuredOperation::Put, "poll", 1 << 20, plain));
    findings.extend(of_plain.map(|(least, size_bytes)| Note::ShareOfPlainCopy { least, size_bytes }));
    let one_way = latency(points, MeasuredOperation::OneWay);
    let cache_line = latency(points, MeasuredOperation::CacheToCache);
    findings.extend(
        one_way.zip(cache_line).map(|(put_ns, cache_line_ns)| Note::OneWay { put_ns, cache_line_ns }),
    );
    let peer = |point: &Point| find(points, MeasuredOperation::PeerPut, "poll", point.size_bytes);
    let against = ratios(points, MeasuredOperation::Put, "poll", 8, peer);
    if let Some((least, size_bytes)) = least(&against) {
        let mean = (against.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / against.len() as f64).exp();
        findings.push(Note::AgainstPeer { mean, least, size_bytes });
    }
    let idle = points.iter().filter(|point| point.operation == MeasuredOperation::Idle);
    findings.extend(
        idle.filter_map(|p| Some(Note::IdleWait { completion: p.completion.clone(), share: p.busy? })),
    );
    findings.extend(waiting_share(points).map(|most| Note::AdaptiveWait { most }));
    for operation in [
        MeasuredOperation::PutByMover,
        MeasuredOperation::PutDelivered,
        MeasuredOperation::Exchange,
        MeasuredOperation::GetPushed,
    ] {
        let poll = |point: &Point| find(points, operation, "poll", point.size_bytes);
        for (completion, from_bytes) in
            [(CompletionMode::Adaptive, 64 << 10), (CompletionMode::Interrupt, 1u64)]
        {
            let shares = ratios(points, operation, &completion.to_string(), from_bytes, poll);
            let most = shares.iter().map(|(share, _)| *share).reduce(f64::max);
            findings.extend(least(&shares).zip(most).map(|((least, least_at_bytes), most)| {
                Note::AgainstPolling { operation, completion, from_bytes, least, least_at_bytes, most }
            }));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(operation: MeasuredOperation, completion: &str, rates: &[f64], cpu: f64) -> Point {
        Point {
            operation,
            path: "test".into(),
            size_bytes: 4 << 20,
            completion: completion.into(),
            latency_ns: Vec::new(),
            samples_ns: (0..100).collect(),
            bytes_per_second: rates.to_vec(),
            operations_per_second: Vec::new(),
            cpu_seconds_per_gigabyte: Some(cpu),
            mover_cpu_seconds_per_gigabyte: None,
            busy: None,
            transferred_bytes: 64,
            verified_bytes: 0,
        }
    }

    #[test]
    fn shares_are_medians_of_pairs() {
        // In the second repeat, puts and copies are both half as fast, as on a machine that is busy for a
        // moment. The ratio of puts to copies stays nearly the same, so the shares in the findings must not
        // change.
        let points = [
            point(MeasuredOperation::Put, "poll", &[9.6, 4.8, 9.7], 1.0),
            point(MeasuredOperation::PlainCopy, "poll", &[10.0, 5.0, 10.0], 1.0),
            point(MeasuredOperation::PeerPut, "poll", &[4.8], 1.0),
            point(MeasuredOperation::PutByMover, "poll", &[10.0, 5.0, 10.0], 0.9),
            point(MeasuredOperation::PutByMover, "adaptive", &[9.8, 4.9, 1.0], 0.3),
        ];
        let findings = findings(&points).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for text in [
            "at least 96.0 % of the bandwidth of a plain copy (at 4 MiB)",
            "geometric mean 2.00, least 2.00 at 4 MiB",
            "adaptive reaches 98 % (at 4 MiB) to 98 %",
            "takes at most 33 % of the processor time of polling",
        ] {
            assert!(findings.contains(text), "{text} is not in {findings}");
        }
        let rows =
            results(&points, &PathExplanation { reason: "a test".into(), ..PathExplanation::default() });
        assert_eq!(rows[0].share_of_ceiling, Some(0.96));
        assert_eq!(rows[0].ceiling.as_ref().unwrap().bytes_per_second, Some(10.0));
        assert_eq!((rows[0].path.name.as_str(), rows[0].path.reason.as_str()), ("test", "a test"));
        assert!(rows[0].latency_percentiles.is_none(), "issued stores have no latency");
        assert_eq!(rows[3].latency_percentiles.as_ref().unwrap().count, 100);
        assert_eq!(rows[3].verification.transferred_bytes, 64);
    }
}
