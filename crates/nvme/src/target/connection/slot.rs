//! The slots of a connection. Each holds a command in progress, its buffers, and what the command waits for.

use crate::target::buffer::Buffer;
use crate::target::io::IoRequest;
use crate::target::storage::OngoingOperation;
use crate::wire::command::Command;

/// What a command in a slot waits for or does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The slot is free.
    Free,
    /// The command waits for a buffer.
    Starved,
    /// An R2T has asked the host for the command's data.
    Receiving,
    /// The command is being carried out.
    Executing,
}

/// A flush's place in the [`FlushGroup`](crate::target::flush::FlushGroup) of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The command does not flush, or not yet.
    None,
    /// The flush waits for another one.
    Waits,
    /// The flush calls `fdatasync`, and must report the result to the group.
    Flushes,
}

/// A command in progress.
#[derive(Debug)]
pub struct Slot {
    /// The command.
    pub command: Command,
    /// What the command waits for or does.
    pub stage: Stage,
    /// The validated I/O command. `None` for admin and Fabrics commands.
    pub request: Option<IoRequest>,
    /// The buffer for data that the command receives from the host or sends to it. `None` if the command has
    /// no buffer now. For a Compare on a file, the blocks that are read follow the host's data.
    pub buffer: Option<Buffer>,
    /// The number of data bytes that the host sends for this command.
    pub expected: u32,
    /// The number of the expected bytes that have arrived.
    pub received: u32,
    /// True if a data digest was wrong.
    pub corrupted: bool,
    /// The progress of the command's file operation. `None` if the command has none.
    pub progress: Option<OngoingOperation>,
    /// The place of the command's flush among the other ones.
    pub turn: Turn,
    /// True for a flush that the target executes because of a shutdown. No response is sent to it.
    pub internal: bool,
}

impl Slot {
    /// Returns the namespace of an I/O command.
    ///
    /// # Panics
    /// If this is no validated I/O command.
    pub fn namespace(&self) -> u32 {
        self.request.as_ref().expect("an I/O command").namespace
    }

    /// Returns the data that the host has sent for an admin or authentication command.
    pub fn data(&self) -> &[u8] {
        self.buffer.as_deref().and_then(|data| data.get(..self.expected as usize)).unwrap_or_default()
    }
}

/// The slots of a connection. Their number grows with the commands that the host keeps in flight.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

impl Slots {
    /// Puts a command into a free slot. Returns the number of the slot.
    pub fn insert(&mut self, command: Command) -> u16 {
        let slot = Slot {
            command,
            stage: Stage::Executing,
            request: None,
            buffer: None,
            expected: 0,
            received: 0,
            corrupted: false,
            progress: None,
            turn: Turn::None,
            internal: false,
        };
        if let Some(number) = self.free.pop() {
            self.slots[usize::from(number)] = slot;
            return number;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u16
    }

    /// Frees a slot, and gives the buffers of its command back.
    pub fn remove(&mut self, number: u16) {
        let slot = &mut self.slots[usize::from(number)];
        assert!(slot.stage != Stage::Free, "a slot in use");
        slot.stage = Stage::Free;
        (slot.buffer, slot.progress) = (None, None);
        self.free.push(number);
    }

    /// Returns the number of slots in use.
    pub fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the command in a slot.
    #[inline]
    pub fn get(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number)]
    }

    /// Returns the command in a slot.
    #[inline]
    pub fn get_mut(&mut self, number: u16) -> &mut Slot {
        &mut self.slots[usize::from(number)]
    }

    /// Returns the command in slot `number`, or `None` if the slot does not exist or is free. Accepts any
    /// number, because the number may come from a host.
    pub fn find(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number)).filter(|slot| slot.stage != Stage::Free)
    }

    /// Returns true if a slot in use meets a condition.
    pub fn any(&self, condition: impl Fn(&Slot) -> bool) -> bool {
        self.slots.iter().any(|slot| slot.stage != Stage::Free && condition(slot))
    }
}
