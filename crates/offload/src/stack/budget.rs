//! A limit for how often something happens.

/// A token bucket: allows a burst of actions, and then one action in each interval.
#[derive(Default)]
pub struct Budget {
    /// The time at which the whole burst is allowed again, in nanoseconds.
    full_at: u64,
}

impl Budget {
    /// Takes one action from the budget. The budget holds at most `burst` actions and regains one every
    /// `interval` nanoseconds. Returns false if no action is left.
    pub fn take(&mut self, now: u64, burst: u64, interval: u64) -> bool {
        let full_at = self.full_at.max(now) + interval;
        let granted = full_at <= now + burst * interval;
        if granted {
            self.full_at = full_at;
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_allows_a_burst_and_then_one_action_an_interval() {
        let mut budget = Budget::default();
        let mut granted = |now, tries| (0..tries).filter(|_| budget.take(now, 50, 1000)).count();
        assert_eq!(granted(0, 100), 50);
        assert_eq!(granted(999, 100), 0);
        assert_eq!(granted(3000, 100), 3);
        assert_eq!(granted(10_000_000, 100), 50);
    }
}
