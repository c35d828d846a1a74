//! Protocol data units (PDUs) of NVMe/TCP (TCP section 3.6.2).
//!
//! ```text
//!   0        1       2      3      4          8            HLEN      +4           PDO          PLEN-4    PLEN
//!   +--------+-------+------+------+----------+-------------+---------+------------+------------+---------+
//!   |  type  | flags | HLEN | PDO  |   PLEN   | rest of the | header  |  padding   |    data    |  data   |
//!   |        |       |      |      |          | header      | digest  |            |            |  digest |
//!   +--------+-------+------+------+----------+-------------+---------+------------+------------+---------+
//!   <------ common header: 8 ------>                          if negotiated        <-- if there is data -->
//! ```
//!
//! All numbers are little-endian. A receiver decodes the first 8 bytes into a [`Layout`], which says how many
//! bytes follow and where the data lies. [`Layout::check_digest`] and [`Header::decode`] validate the header.
//! An invalid field is reported as a [`Fault`], which can be sent to the peer as a termination request.
//!
//! A sender calls [`encode`], which writes a header with its digest and padding. The sender transmits these
//! bytes, then the data, then [`digest`] of the data.

mod digest;
mod fault;
mod header;
mod kind;
mod layout;
#[cfg(test)]
mod tests;

pub use digest::{RunningDigest, digest};
pub(crate) use fault::field;
pub use fault::{FatalStatus, Fault, Termination};
pub use header::{
    Common, Header, Initialization, Pdu, TermReq, Transfer, data_flags, encode, encode_termination,
};
pub use kind::{Kind, Sender};
pub use layout::{Digests, Layout, MAX_HEADER, Rules};
