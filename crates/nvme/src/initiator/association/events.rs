//! The events that a controller reports, and its log pages.

use super::{Association, TOKEN_EVENT, TOKEN_KEEP_ALIVE};
use crate::initiator::Buffer;
use crate::initiator::connection::{Done, Submission};
use crate::wire::command::{Command, admin, async_event, feature};
use crate::{Error, Result};

impl Association {
    pub(super) fn take_background(&mut self) {
        while let Some(done) = self.admin.connection.next_done() {
            self.background(&done);
        }
    }

    pub(super) fn background(&mut self, done: &Done) {
        match done.token {
            TOKEN_KEEP_ALIVE => self.keep_alive_in_flight = false,
            TOKEN_EVENT => {
                self.event_armed = false;
                // Leave the request for the next event to `tick`, so that a controller that reports events without end is
                // served only once per tick.
                self.watches_events = done.status().is_success();
                let event = done.completion.dw0.get();
                if self.watches_events && !self.events.contains(&event) {
                    self.events.push(event);
                }
            }
            _ => {}
        }
    }

    /// Asks the controller to report changes of namespaces, or of the discovery log.
    /// [`Association::next_event`] returns them.
    ///
    /// # Errors
    /// If the connection failed.
    pub fn watch_events(&mut self) -> Result<()> {
        let notices =
            if self.is_discovery() { async_event::DISCOVERY_NOTICES } else { async_event::NAMESPACE_NOTICES };
        let supported = self.identify.oaes.get() & notices;
        if supported == 0 {
            return Ok(());
        }
        let mut command = Command::new(admin::SET_FEATURES, 0);
        command.cdw10 = u32::from(feature::ASYNC_EVENT_CONFIGURATION).into();
        command.cdw11 = supported.into();
        match self.admin(command, None, "enabling events") {
            Ok(_) => {
                self.watches_events = true;
                self.arm_event();
            }
            // If the controller refuses this command, continue. It may still report events that the host
            // cannot turn on or off.
            Err(Error::Status { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn arm_event(&mut self) {
        if self.watches_events && !self.event_armed {
            let command = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
            let request = Submission { token: TOKEN_EVENT, command, buffer: None };
            self.event_armed = self.admin.connection.submit_held(request).is_ok();
        }
    }

    /// Returns the next event that the controller reported: dword 0 of the completion, see [`async_event`].
    pub fn next_event(&mut self) -> Option<u32> {
        (!self.events.is_empty()).then(|| self.events.remove(0))
    }

    /// Reads a part of a log page. `offset` and the buffer's length are multiples of 4.
    ///
    /// # Errors
    /// If the controller refuses or the connection fails.
    pub fn log_page(&mut self, page: u8, offset: u64, buffer: Buffer) -> Result<Buffer> {
        let mut command = Command::new(admin::GET_LOG_PAGE, 0);
        let dwords = (buffer.len() / 4 - 1) as u32;
        command.cdw10 = (u32::from(page) | dwords << 16).into();
        command.cdw11 = (dwords >> 16).into();
        command.cdw12 = (offset as u32).into();
        command.cdw13 = ((offset >> 32) as u32).into();
        let done = self.admin(command, Some(buffer), &format!("reading log page {page:02x}h"))?;
        Ok(done.buffer.expect("the command had a buffer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initiator::session_tests::{options, target};
    use crate::wire::command::Completion;

    #[test]
    fn a_storm_of_events_neither_fills_the_list_nor_asks_for_more() {
        let target = target("127.0.0.1:0", "memory:1M");
        let address = target.subsystem().listeners[0];
        let mut association =
            Association::connect(&address.to_string().parse().unwrap(), &options(address).connect).unwrap();
        association.watch_events().unwrap();
        assert!(association.event_armed);
        for _ in 0..1000 {
            let mut completion = Completion::new(0, crate::wire::command::Status::SUCCESS, 0, 0, 0);
            completion.dw0 = async_event::NAMESPACE_CHANGED.into();
            let command = Command::new(admin::ASYNC_EVENT_REQUEST, 0);
            association.background(&Done { token: TOKEN_EVENT, command, completion, buffer: None });
            assert!(!association.event_armed);
        }
        assert_eq!(association.next_event(), Some(async_event::NAMESPACE_CHANGED));
        assert_eq!(association.next_event(), None);
        association.tick().unwrap();
        assert!(association.event_armed);
    }
}
