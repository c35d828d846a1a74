//! Processes the requests of programs that set and read options and addresses of sockets.

use super::Engine;
use super::control::Request;
use super::pair::{self, Filled};
use super::reply::Reply;
use super::report;
use super::socket::Pair;
use crate::stack::socket::Role;
use inlane_offload_protocol::message::{Message, Operation, write_options};

impl Engine {
    pub(super) fn set_option(&mut self, now: u64, request: &Request) -> Reply {
        let key = self.attached(request)?;
        if (request.message.level, request.message.name) == (libc::SOL_SOCKET, libc::SO_PRIORITY) {
            return self.take_program_end(key, request);
        }
        self.drain_datagrams(now, key);
        let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
        let message = &request.message;
        socket.options.set(message.level, message.name, message.value());
        let options = &socket.options;
        let attachment = &mut socket.attachment;
        if let (Role::Stream(stream), Pair::Stream(pair)) = (&mut socket.role, &mut attachment.pair) {
            stream.connection.set_keepalive(now, options.keepalive());
            stream.connection.set_user_timeout(options.user_timeout());
            match (message.level, message.name) {
                (libc::IPPROTO_TCP, libc::TCP_NODELAY) => stream.connection.set_no_delay(options.no_delay),
                (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
                    let usual = inlane_tcp::Config::default().fin_timeout;
                    stream.connection.set_fin_timeout(options.fin_timeout().unwrap_or(usual));
                }
                (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                    stream.more_end = None;
                    stream.connection.set_cork(options.cork);
                }
                (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                    stream.limit_rings(options);
                    pair::limit(options, attachment.end.as_ref());
                }
                (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                    stream.limit_rings(options);
                    match (&mut pair.filled, options.send_buffer, &request.attached) {
                        (Some(filled), Some(bytes), _) => filled.set_capacity(bytes),
                        // Set the socket pair's send buffer here. The preloaded library does not set it while
                        // the socket is connecting. The connection may have been established before this
                        // request arrived. If the library has also set the buffer, the value is the same.
                        (None, Some(bytes), Some(program)) => {
                            let _ = pair::set_option(program, libc::SO_SNDBUF, bytes / 2);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
            self.stack.tell_options(key);
            self.stack.touch(key);
        } else if let Role::Listening(listening) = &mut socket.role {
            listening.listener.set_defer(options.defer_accept());
            self.stack.tell_listener(key);
        } else if let Role::Datagram(_) = &socket.role {
            self.on_datagram_option(now, key, message.level, message.name);
        }
        Ok((Message::new(Operation::SetOption), None))
    }

    pub(super) fn expect_more(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get_mut(key).ok_or(libc::EBADF)?;
        let fd = socket.attachment.fd();
        if let (Role::Stream(stream), Pair::Stream(pair), Some(fd), Ok(bytes)) =
            (&mut socket.role, &socket.attachment.pair, fd, u64::try_from(request.message.number))
        {
            pair.expect_more(stream, fd, bytes);
        }
        Ok((Message::new(Operation::More), None))
    }

    pub(super) fn get_option(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let message = &request.message;
        let mut reply = Message::new(Operation::GetOption);
        let filled = match &socket.attachment.pair {
            Pair::Stream(pair) => pair.filled.as_ref(),
            _ => None,
        };
        match (message.level, message.name, socket.stream()) {
            (libc::IPPROTO_TCP, libc::TCP_INFO, stream) => reply.set_value(&report::tcp_info(socket, stream)),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, Some(stream)) => {
                reply.set_value(&(stream.connection.segment_size() as i32).to_ne_bytes());
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF, Some(_)) if filled.is_some() => {
                let capacity = filled.map_or(0, Filled::capacity);
                reply.set_value(&capacity.to_ne_bytes());
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF, None) if matches!(socket.role, Role::Listening(_)) => {
                let capacity = socket.options.send_buffer.map_or_else(pair::usual_capacity, Ok)?;
                reply.set_value(&capacity.to_ne_bytes());
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG, None) => reply.set_value(&536i32.to_ne_bytes()),
            (level, name, _) if matches!(socket.role, Role::Datagram(_)) => {
                reply.set_value(&socket.options.datagram_option(level, name).to_ne_bytes());
            }
            (level, name, _) => {
                let value = socket.options.get(level, name).ok_or(libc::ENOPROTOOPT)?;
                reply.set_value(&value);
            }
        }
        Ok((reply, None))
    }

    pub(super) fn socket_addresses(&mut self, request: &Request) -> Reply {
        let key = self.attached(request)?;
        let socket = self.stack.sockets.get(key).ok_or(libc::EBADF)?;
        let mut reply = Message::new(Operation::Addresses);
        reply.local = Some(socket.local);
        reply.remote = match &socket.role {
            Role::Datagram(datagram) => datagram.remote,
            _ => socket.stream().map(|stream| stream.flow.remote),
        };
        reply.number = i32::from(matches!(socket.role, Role::Listening(_)));
        write_options(&mut reply, &socket.options.kept());
        Ok((reply, None))
    }
}
