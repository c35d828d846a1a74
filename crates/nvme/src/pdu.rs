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
//! A receiver reads 8 bytes and gets their [`Layout`], which says how many bytes follow and where the data lies. It then reads the
//! header into a small buffer and the data directly into its destination. [`Layout::check_digest`] and [`Header::decode`] validate
//! the header. All numbers are little-endian. Each invalid field is reported as a [`Fault`], which names the field and its offset
//! and can be sent to the peer as a termination request.
//!
//! A sender fills in a header and calls [`encode`], which writes it with its digest and padding into the caller's buffer. The
//! caller sends that, then the data, then [`digest`] of the data. No function of this module allocates.

mod digest;
mod fault;
mod header;
mod layout;
#[cfg(test)]
mod tests;

pub use digest::{RunningDigest, digest};
pub use fault::{FatalStatus, Fault, Termination, encode_termination};
pub use header::{
    CapsuleCmd, CapsuleResp, Common, Data, Header, IcReq, IcResp, R2t, TermReq, data_flags, encode,
};
pub use layout::{Digests, Kind, Layout, MAX_HEADER, Rules, Sender};
