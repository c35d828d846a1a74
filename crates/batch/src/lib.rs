//! The library behind `include/inlane_batch.h`: C programs receive packets from inlane's ports and send packets to them, over
//! [`inlane_forward::batch`].
//!
//! The header documents each function. Its promises to the program are kept here as follows:
//!
//! * No panic reaches C: each function runs in `status::status_of` or `status::value_of`.
//! * Arguments are checked before use as far as C allows: null pointers, texts, the size of the settings.
//! * A receiver or sender is behind a lock, so several threads may use it. Only stopping takes no lock.

mod batch;
mod receiver;
mod result;
mod sender;
mod settings;
mod status;
