//! The outcome of checking packets: the numbers of lost, duplicated, reordered and altered ones.

/// The outcome of checking packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Verification {
    /// How packets were checked, for example `every packet against the reference function macswap`.
    pub method: String,
    /// The number of packets that had to arrive. Null if the sender is another process or has sent nothing.
    #[cfg_attr(feature = "serde", serde(rename = "expected_packets"))]
    pub expected: Option<u64>,
    /// The number of packets that were checked.
    #[cfg_attr(feature = "serde", serde(rename = "verified_packets"))]
    pub checked: u64,
    /// Packets that were sent and not received.
    #[cfg_attr(feature = "serde", serde(rename = "lost_packets"))]
    pub lost: u64,
    /// Packets that were received more than once.
    #[cfg_attr(feature = "serde", serde(rename = "duplicated_packets"))]
    pub duplicated: u64,
    /// Packets that arrived after a later packet of the same flow.
    #[cfg_attr(feature = "serde", serde(rename = "reordered_packets"))]
    pub reordered: u64,
    /// Packets whose bytes differ from what was expected.
    #[cfg_attr(feature = "serde", serde(rename = "altered_packets"))]
    pub altered: u64,
    /// An altered packet, and its first difference from what was expected. Null if no altered packet could be identified.
    pub altered_example: Option<String>,
}

impl Verification {
    /// Returns true if packets were checked and none was lost, duplicated, reordered or altered. Also returns
    /// true if no packet had to arrive and none did.
    pub fn passed(&self) -> bool {
        !self.failed() && !self.received_nothing()
    }

    /// Returns true if no packet was checked although packets may have been sent.
    pub fn received_nothing(&self) -> bool {
        self.checked == 0 && self.expected != Some(0)
    }

    /// Returns true if a packet was lost, duplicated, reordered or altered.
    pub fn failed(&self) -> bool {
        self.lost + self.duplicated + self.reordered + self.altered > 0
    }

    /// Returns `ok`, `FAILED` or `nothing was received`.
    pub fn verdict(&self) -> &'static str {
        match (self.passed(), self.failed()) {
            (true, _) => "ok",
            (_, true) => "FAILED",
            _ => "nothing was received",
        }
    }

    /// Returns the verdict and the counts as text.
    pub fn text(&self) -> String {
        let Self { checked, lost, duplicated, reordered, altered, method, .. } = self;
        format!(
            "{}: {checked} packets, {lost} lost, {duplicated} duplicated, {reordered} reordered, {altered} altered ({method})",
            self.verdict()
        )
    }

    /// Adds the counts of another check, for example of a second checker in the same run.
    pub fn add(&mut self, other: &Self) {
        if self.method.is_empty() {
            self.method.clone_from(&other.method);
        }
        self.expected = self.expected.zip(other.expected).map(|(a, b)| a + b);
        self.checked += other.checked;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.altered += other.altered;
        self.altered_example = self.altered_example.take().or_else(|| other.altered_example.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checking_nothing_is_neither_passed_nor_failed() {
        assert!(!Verification::default().passed() && !Verification::default().failed());
        assert!(Verification { checked: 1, ..Default::default() }.passed());
        assert!(!Verification { checked: 1, lost: 1, ..Default::default() }.passed());
        assert!(Verification { lost: 1, ..Default::default() }.failed());
    }

    #[test]
    fn receiving_nothing_passes_only_if_nothing_was_expected() {
        let found = |expected| Verification { expected, ..Default::default() };
        assert!(found(None).received_nothing() && found(Some(1)).received_nothing());
        assert!(found(Some(0)).passed() && !found(Some(0)).received_nothing());
    }

    #[test]
    fn several_checks_add_up() {
        let one = Verification { expected: Some(2), checked: 1, lost: 1, ..Default::default() };
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!((sum.expected, sum.checked, sum.lost), (Some(4), 2, 2));
        sum.add(&Verification { expected: None, ..one });
        assert_eq!(sum.expected, None);
    }

    #[test]
    fn the_text_begins_with_the_verdict() {
        let text = |checked, lost| Verification { checked, lost, ..Default::default() }.text();
        assert!(text(0, 0).starts_with("nothing was received: 0 packets"));
        assert!(text(1, 0).starts_with("ok: 1 packets"));
        assert!(text(0, 1).starts_with("FAILED: 0 packets, 1 lost"));
    }
}
