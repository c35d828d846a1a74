//! Divides a thread's memory for data buffers among hosts.
//!
//! ```text
//!   all buffers  <--  network address  <--  controller  <--  connection
//! ```
//!
//! A level may use at most twice the bytes that its parent has free. Therefore one controller that asks for all
//! buffers gets about half of them, and a second one at its address gets at least a seventh of the rest. However many
//! hosts are greedy, some buffers stay free. The rule is that of Choudhury and Hahne: Dynamic queue length thresholds
//! for shared-memory packet switches, 1998.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};

/// Names a level below another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The hosts at a network address.
    Source(IpAddr),
    /// The controller with this identifier.
    Controller(u16),
}

/// One level.
#[derive(Debug)]
pub struct Budget {
    parent: Option<Rc<Budget>>,
    most_bytes: usize,
    used_bytes: Cell<usize>,
    children: RefCell<HashMap<Key, Weak<Budget>>>,
}

impl Budget {
    /// Creates a level below `parent`. It may use at most `most_bytes`.
    pub fn new(parent: Option<Rc<Budget>>, most_bytes: usize) -> Rc<Self> {
        Rc::new(Self { parent, most_bytes, used_bytes: Cell::new(0), children: RefCell::default() })
    }

    /// Creates the level of a connection. It may use at most `most_bytes`.
    pub fn connection(self: &Rc<Self>, most_bytes: usize) -> Rc<Self> {
        Self::new(Some(self.clone()), most_bytes)
    }

    /// Returns the level that `key` names below this one. All callers with the same key share it.
    pub fn shared(self: &Rc<Self>, key: Key) -> Rc<Self> {
        let mut children = self.children.borrow_mut();
        if let Some(child) = children.get(&key).and_then(Weak::upgrade) {
            return child;
        }
        children.retain(|_, child| child.strong_count() > 0);
        let child = Self::new(Some(self.clone()), usize::MAX);
        children.insert(key, Rc::downgrade(&child));
        child
    }

    /// Returns how many more bytes this level may use. Negative if other levels have taken them meanwhile.
    fn left_bytes(&self) -> i64 {
        let most = i64::try_from(self.most_bytes).unwrap_or(i64::MAX);
        let most = match &self.parent {
            Some(parent) => most.min(2 * parent.left_bytes()),
            None => most,
        };
        most - self.used_bytes.get() as i64
    }

    /// Takes bytes from this level and those above it. Returns false and takes none if too few are left.
    pub fn take(&self, bytes: usize) -> bool {
        self.change(|used| used + bytes);
        let taken = self.left_bytes() >= 0;
        if !taken {
            self.give_back(bytes);
        }
        taken
    }

    /// Gives back bytes that were taken.
    pub fn give_back(&self, bytes: usize) {
        self.change(|used| used - bytes);
    }

    fn change(&self, change: impl Fn(usize) -> usize + Copy) {
        self.used_bytes.set(change(self.used_bytes.get()));
        if let Some(parent) = &self.parent {
            parent.change(change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes units from a level until it has none left. Returns how many it took.
    fn take_all(budget: &Budget) -> usize {
        (0..).take_while(|_| budget.take(1)).count()
    }

    #[test]
    fn greedy_hosts_leave_room_for_others() {
        let all = Budget::new(None, 1000);
        let source = all.shared(Key::Source([127, 0, 0, 1].into()));
        let greedy = source.shared(Key::Controller(1));
        let taken: usize = (0..16).map(|_| take_all(&greedy.connection(usize::MAX))).sum();
        assert!((500..600).contains(&taken), "{taken}");
        // Another controller at the same address gets room, and a host at another address gets more.
        let beside = source.shared(Key::Controller(2)).connection(usize::MAX);
        let same = take_all(&beside);
        assert!(same >= 70, "{same}");
        beside.give_back(same);
        let elsewhere = all.shared(Key::Source([127, 0, 0, 2].into())).shared(Key::Controller(3));
        let other = take_all(&elsewhere.connection(usize::MAX));
        assert!(other >= 180, "{other}");
        assert!(Rc::ptr_eq(&greedy, &source.shared(Key::Controller(1))));
    }

    #[test]
    fn many_controllers_of_one_address_leave_room_for_another_address() {
        let all = Budget::new(None, 100_000);
        let source = all.shared(Key::Source([127, 0, 0, 1].into()));
        let controllers: Vec<_> = (0..256).map(|id| source.shared(Key::Controller(id))).collect();
        let taken: usize = controllers.iter().map(|controller| take_all(controller)).sum();
        assert!(taken > 50_000, "{taken}");
        let other = take_all(&all.shared(Key::Source([127, 0, 0, 2].into())).shared(Key::Controller(300)));
        assert!(other >= 18_000, "{other}");
    }

    #[test]
    fn a_connection_has_a_quota_and_levels_without_users_disappear() {
        let all = Budget::new(None, 1000);
        assert_eq!(take_all(&all.connection(10)), 10);
        for id in 0..100 {
            drop(all.shared(Key::Controller(id)));
        }
        assert_eq!(all.children.borrow().len(), 1);
    }
}
