//! The rows of a comparison's document: a figure on two sides, its change, and the verdict.

use super::{Difference, Ratio, SMALL};
use crate::figures::Figure;
use inlane_core::stats::Summary;
use inlane_result::{Cell, Quantity, Row};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a comparison shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The rate is higher, or the time shorter.
    Faster,
    /// The rate is lower, or the time longer.
    Slower,
    /// The interval contains no change, or the change is below 1 %.
    NoDifference,
    /// There are too few repeats for an interval.
    TooFew,
    /// The conditions differ.
    NotComparable,
    /// The other side lost, duplicated, reordered or altered packets or bytes, and the first did not.
    Wrong,
    /// The run of the other side failed.
    Failed,
    /// The other side lacks the row or its figures.
    Missing,
    /// Only the other side has the row.
    Added,
}

impl Verdict {
    /// Returns true if repeats were compared.
    pub fn is_judged(self) -> bool {
        matches!(self, Verdict::Faster | Verdict::Slower | Verdict::NoDifference)
    }

    fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference shown",
            Verdict::TooFew => "too few repeats",
            Verdict::NotComparable => "not comparable",
            Verdict::Wrong => "wrong",
            Verdict::Failed => "failed",
            Verdict::Missing => "missing",
            Verdict::Added => "no counterpart",
        }
    }
}

/// A figure on two sides.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// The file or folder that is compared with the first one.
    pub result: String,
    /// What tells the row apart from others, such as burst and size.
    pub parameters: BTreeMap<String, String>,
    /// The figure, such as `rate` or `p99`. Null if the rows have no figures to compare.
    pub figure: Option<String>,
    /// The unit of the values, as the end of a key: `packets_per_second`, `bytes_per_second`, `per_second` or `ns`.
    pub unit: Option<String>,
    /// The figure of the first side: the median of its repeats.
    pub before: Option<Summary>,
    /// The figure of the other side.
    pub after: Option<Summary>,
    /// The median of the ratios of all pairs of repeats, minus 1.
    pub change: Option<f64>,
    /// The lower end of the change's 95 % interval. Null if there are too few repeats.
    pub low: Option<f64>,
    /// The upper end of the change's 95 % interval.
    pub high: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the figures are not comparable, or what failed.
    pub why: Option<String>,
    /// The conditions that differ.
    pub differences: Vec<Difference>,
    /// True if the first side is compared with several others.
    #[serde(skip)]
    pub(super) one_of_several: bool,
    /// The figure's kind of unit, for its text.
    #[serde(skip)]
    pub(super) quantity: Option<Quantity>,
    /// The cells of `parameters`, in their order.
    #[serde(skip)]
    pub(super) identity: Vec<Cell>,
}

impl Comparison {
    /// Creates the row for a measurement that has no figures on one of the sides.
    pub(super) fn without_figures(result: &str, identity: &[Cell], verdict: Verdict) -> Self {
        let parameters = identity.iter().map(|cell| (cell.name.clone(), cell.value.to_string()));
        Self {
            result: result.into(),
            parameters: parameters.collect(),
            figure: None,
            unit: None,
            before: None,
            after: None,
            change: None,
            low: None,
            high: None,
            verdict,
            why: None,
            differences: Vec::new(),
            one_of_several: false,
            quantity: None,
            identity: identity.to_vec(),
        }
    }

    /// Compares the repeats of a figure.
    pub(super) fn of(
        result: &str,
        identity: &[Cell],
        figure: &Figure,
        before: &[f64],
        after: &[f64],
        comparable: bool,
    ) -> Self {
        let positive = before.iter().chain(after).all(|value| *value > 0.0);
        let ratio = Ratio::of(before, after).filter(|_| positive);
        let interval = ratio.and_then(|ratio| ratio.interval);
        let verdict = match (ratio, interval) {
            _ if !comparable => Verdict::NotComparable,
            (Some(ratio), Some((low, high))) if low > 1.0 || high < 1.0 => {
                match (ratio.ratio > 1.0) == figure.higher_is_better {
                    _ if (ratio.ratio - 1.0).abs() < SMALL => Verdict::NoDifference,
                    true => Verdict::Faster,
                    false => Verdict::Slower,
                }
            }
            (_, Some(_)) => Verdict::NoDifference,
            (_, None) => Verdict::TooFew,
        };
        Self {
            figure: Some(figure.name.clone()),
            unit: Some(figure.quantity.key_suffix().trim_start_matches('_').into()),
            before: Summary::of(before),
            after: Summary::of(after),
            change: ratio.map(|ratio| ratio.ratio - 1.0),
            low: interval.map(|(low, _)| low - 1.0),
            high: interval.map(|(_, high)| high - 1.0),
            quantity: Some(figure.quantity),
            ..Self::without_figures(result, identity, verdict)
        }
    }

    /// Returns by which fraction the figure became slower: of the rate, or of the time. Negative if it became faster.
    pub fn loss(&self) -> f64 {
        let change = self.change.unwrap_or(0.0);
        if matches!(self.quantity, Some(Quantity::Time(_))) { change } else { -change }
    }

    /// Returns the verdict in words, with its reason.
    pub fn verdict_text(&self) -> String {
        match &self.why {
            Some(why) => format!("{}: {why}", self.verdict.words()),
            None => self.verdict.words().into(),
        }
    }

    /// Names the row and the figure, for messages.
    pub fn name(&self) -> String {
        let cells = self.identity.iter().map(|cell| format!("{} {}", cell.name, cell.value));
        cells.chain(self.figure.clone()).collect::<Vec<_>>().join(", ")
    }
}

impl Row for Comparison {
    fn parameters(&self) -> Vec<Cell> {
        let mut cells = self.identity.clone();
        if self.one_of_several {
            cells.push(Cell::new("compared with", &self.result));
        }
        cells
    }

    fn figures(&self) -> Vec<Cell> {
        let shown = |side: &Option<Summary>| {
            let median = side.as_ref().map(|side| side.median);
            median.zip(self.quantity).map(|(median, unit)| unit.with_number(median))
        };
        let signed = |share: f64| format!("{:+.1}", share * 100.0);
        let interval =
            self.low.zip(self.high).map(|(low, high)| format!("{} to {} %", signed(low), signed(high)));
        vec![
            Cell::new("figure", self.figure.clone()),
            Cell::new("before", shown(&self.before)),
            Cell::new("after", shown(&self.after)),
            Cell::new("change", self.change.map(|change| format!("{} %", signed(change)))),
            Cell::new("95 % interval", interval),
            Cell::new("verdict", self.verdict_text()),
        ]
    }

    fn context(&self) -> Vec<Cell> {
        let mild = self.differences.iter().filter(|difference| !difference.condition.is_severe(&[]));
        mild.map(|difference| Cell::new("differs", difference.to_string())).collect()
    }
}
