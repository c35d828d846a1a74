//! Submits the requests of the worker's connections to the worker's io_uring. Processes the results.

use super::{BATCH_BYTES, Closing, Worker, kind, tag};
use crate::target::ring::Completed;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    pub(super) fn received(&mut self, index: usize, item: Completed) {
        let (now, least_rate) = (self.now_ms, self.subsystem.limits.least_rate);
        let link = self.link(index);
        link.receiving = false;
        link.more_to_receive = item.more_to_receive();
        match item.result {
            _ if link.closing == Closing::Yes => {}
            // Close the connection, because the host closed it or the receive failed.
            result if result <= 0 && !is_transient(result) => return self.close(index),
            result if result <= 0 || link.closing != Closing::No => {}
            result => {
                let before = link.connection.delivered();
                link.connection.received(result as usize, now);
                link.data_wait.progress(link.connection.delivered() - before, least_rate, now);
                // Data for the next command has its own time.
                link.data_wait.update(link.connection.awaits_data(), now);
                if !link.admin && link.connection.is_admin() {
                    link.admin = true;
                    self.load.admin_queues.fetch_add(1, Relaxed);
                }
            }
        }
        self.mark(index);
    }

    /// Goes on sending, because the socket is writable.
    pub(super) fn writable(&mut self, index: usize) {
        let now = self.now_ms;
        let link = self.link(index);
        link.blocked = false;
        link.connection.resume(now);
        self.mark(index);
    }

    pub(super) fn file_returned(&mut self, index: usize, slot: u16, result: i32) {
        let now = self.now_ms;
        let link = self.link(index);
        link.operations -= 1;
        if link.connection.returned(slot, result, now) {
            self.start_call(index, slot);
        }
        self.mark(index);
    }

    pub(super) fn start_call(&mut self, index: usize, slot: u16) {
        self.link(index).operations += 1;
        self.submit_call(index, slot);
    }

    /// Submits the system call of a file operation, unless the operation waits for a flush of another connection.
    pub(super) fn submit_call(&mut self, index: usize, slot: u16) {
        let Some((descriptor, call)) = self.link(index).connection.call(slot) else { return };
        // SAFETY: the memory belongs to a buffer of the command. The connection keeps the buffer until the
        // call has returned.
        unsafe { self.ring.call(descriptor, call, tag(kind::FILE, index, slot)) };
        if call.bytes() < BATCH_BYTES {
            self.ring.submit();
        }
    }

    /// Sends a part of the output. If more is left, waits until the socket is writable, so that connections take turns.
    pub(super) fn send(&mut self, index: usize) {
        let (now, least_rate) = (self.now_ms, self.subsystem.limits.least_rate);
        let Self { links, ring, vectors, .. } = self;
        let link = links[index].as_mut().expect("a link");
        if link.blocked || link.connection.pending_bytes() == 0 {
            return;
        }
        let socket = link.socket.as_raw_fd();
        let sent = link.connection.send(self.index, vectors, |vectors| {
            // SAFETY: a message header of zeros is valid.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len());
            // SAFETY: the vectors describe readable memory.
            unsafe { libc::sendmsg(socket, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
        });
        if sent < 0 && !is_transient(-std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) {
            return self.close(index);
        }
        let pending = link.connection.pending_bytes() > 0;
        link.response_wait.progress(u64::try_from(sent).unwrap_or(0), least_rate, now);
        link.response_wait.update(pending, now);
        if pending {
            link.blocked = true;
            ring.poll(socket, libc::POLLOUT, tag(kind::WRITABLE, index, 0));
        }
    }

    pub(super) fn receive(&mut self, index: usize) {
        let Self { links, ring, .. } = self;
        let link = links[index].as_mut().expect("a link");
        if link.receiving || link.closing == Closing::Yes {
            return;
        }
        let spaces = match link.closing {
            Closing::Lingers(_) => Some([&mut link.discard[..], &mut []]),
            _ => link.connection.spaces(),
        };
        let Some([first, second]) = spaces else { return };
        link.receiving = true;
        let (socket, wait) = (link.socket.as_raw_fd(), !link.more_to_receive);
        let tag = tag(kind::RECEIVE, index, 0);
        if second.is_empty() {
            // SAFETY: the memory belongs to the boxed link, and nothing else uses it until the receive has
            // returned.
            return unsafe { ring.receive(socket, first.as_mut_ptr(), first.len(), wait, tag) };
        }
        link.receive_vectors = [first, second]
            .map(|space| libc::iovec { iov_base: space.as_mut_ptr().cast(), iov_len: space.len() });
        link.receive_message.msg_iov = link.receive_vectors.as_mut_ptr();
        link.receive_message.msg_iovlen = link.receive_vectors.len();
        // SAFETY: as above. The link also has the message header and its vectors.
        unsafe { ring.receive_message(socket, &mut link.receive_message, wait, tag) };
    }
}

/// Returns true if a request that ended with `result` can be repeated.
fn is_transient(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}
