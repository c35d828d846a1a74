//! Status codes and their names (Base section 3.3.3.2.1).

use std::fmt;

/// The status field of a completion, without the phase tag.
///
/// | bits | contents |
/// | --- | --- |
/// | 7:0 | code |
/// | 10:8 | type |
/// | 12:11 | CRD |
/// | 13 | More |
/// | 14 | Do Not Retry |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u16);

/// Declares the statuses, each as `CONSTANT = type, code, name in the specification;`.
macro_rules! statuses {
    ($($(#[$meta:meta])* $constant:ident = $class:literal, $code:literal, $name:literal;)*) => {
        impl Status {
            $($(#[$meta])* pub const $constant: Status = Status($class << 8 | $code);)*

            /// Returns the name in the specification, or `None` if the code is unknown.
            pub fn name(self) -> Option<&'static str> {
                match Status(self.0 & 0x7FF) {
                    $(Status::$constant => Some($name),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        pub(super) const ALL: &[Status] = &[$(Status::$constant),*];
    };
}

statuses! {
    /// The command completed without error.
    SUCCESS = 0, 0x00, "Successful Completion";
    /// The opcode is not supported.
    INVALID_OPCODE = 0, 0x01, "Invalid Command Opcode";
    /// A field of the command has a reserved or unsupported value.
    INVALID_FIELD = 0, 0x02, "Invalid Field in Command";
    /// Another command in flight has the same identifier.
    COMMAND_ID_CONFLICT = 0, 0x03, "Command ID Conflict";
    /// Data or metadata could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, "Data Transfer Error";
    /// The controller was notified that it will lose power.
    POWER_LOSS = 0, 0x05, "Commands Aborted due to Power Loss Notification";
    /// An error inside the controller.
    INTERNAL_ERROR = 0, 0x06, "Internal Error";
    /// An Abort ended the command.
    ABORT_REQUESTED = 0, 0x07, "Command Abort Requested";
    /// The queue was deleted.
    ABORTED_SQ_DELETION = 0, 0x08, "Command Aborted due to SQ Deletion";
    /// The namespace or its format is invalid.
    INVALID_NAMESPACE = 0, 0x0B, "Invalid Namespace or Format";
    /// Several commands that form a sequence, as in a security protocol, came in a wrong order.
    SEQUENCE_ERROR = 0, 0x0C, "Command Sequence Error";
    /// An SGL Segment or SGL Last Segment descriptor is invalid.
    INVALID_SGL_SEGMENT = 0, 0x0D, "Invalid SGL Segment Descriptor";
    /// The SGL has a wrong number of descriptors.
    INVALID_SGL_COUNT = 0, 0x0E, "Invalid Number of SGL Descriptors";
    /// The SGL describes more or less data than the command transfers.
    INVALID_SGL_LENGTH = 0, 0x0F, "Data SGL Length Invalid";
    /// The type of an SGL descriptor is not supported.
    INVALID_SGL_TYPE = 0, 0x11, "SGL Descriptor Type Invalid";
    /// The SGL's offset is outside the capsule.
    INVALID_SGL_OFFSET = 0, 0x16, "SGL Offset Invalid";
    /// Hosts use different formats of the host identifier.
    HOST_ID_INCONSISTENT = 0, 0x18, "Host Identifier Inconsistent Format";
    /// The keep-alive timer expired.
    KEEP_ALIVE_EXPIRED = 0, 0x19, "Keep Alive Timer Expired";
    /// The keep-alive timeout is invalid.
    KEEP_ALIVE_INVALID = 0, 0x1A, "Keep Alive Timeout Invalid";
    /// The namespace is write protected.
    WRITE_PROTECTED = 0, 0x20, "Namespace is Write Protected";
    /// The command was interrupted and may be retried.
    INTERRUPTED = 0, 0x21, "Command Interrupted";
    /// A transient error of the transport.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, "Transient Transport Error";
    /// The range of blocks ends beyond the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, "LBA Out of Range";
    /// The namespace has no more capacity.
    CAPACITY_EXCEEDED = 0, 0x81, "Capacity Exceeded";
    /// The namespace is not ready.
    NAMESPACE_NOT_READY = 0, 0x82, "Namespace Not Ready";
    /// A reservation of another host prevents the command.
    RESERVATION_CONFLICT = 0, 0x83, "Reservation Conflict";
    /// The queue identifier is invalid.
    INVALID_QUEUE_ID = 1, 0x01, "Invalid Queue Identifier";
    /// The queue size is invalid.
    INVALID_QUEUE_SIZE = 1, 0x02, "Invalid Queue Size";
    /// Too many Aborts are in flight.
    ABORT_LIMIT = 1, 0x03, "Abort Command Limit Exceeded";
    /// Too many Asynchronous Event Requests are in flight.
    ASYNC_EVENT_LIMIT = 1, 0x05, "Asynchronous Event Request Limit Exceeded";
    /// The log page is not supported.
    INVALID_LOG_PAGE = 1, 0x09, "Invalid Log Page";
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0D, "Feature Identifier Not Saveable";
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0E, "Feature Not Changeable";
    /// The feature belongs to the controller, and the command names a namespace.
    FEATURE_NOT_NAMESPACE_SPECIFIC = 1, 0x0F, "Feature Not Namespace Specific";
    /// The I/O command set is not supported.
    COMMAND_SET_NOT_SUPPORTED = 1, 0x29, "I/O Command Set Not Supported";
    /// Connect: the record format (RECFMT) is not supported. Other commands use the same code for other
    /// statuses.
    CONNECT_INCOMPATIBLE_FORMAT = 1, 0x80, "Connect Incompatible Format";
    /// Connect: the controller is in use.
    CONNECT_CONTROLLER_BUSY = 1, 0x81, "Connect Controller Busy";
    /// Connect: a parameter is invalid. Dword 0 says which.
    CONNECT_INVALID_PARAMETERS = 1, 0x82, "Connect Invalid Parameters";
    /// Connect: discovery must be restarted.
    CONNECT_RESTART_DISCOVERY = 1, 0x83, "Connect Restart Discovery";
    /// Connect: the host is not allowed to connect.
    CONNECT_INVALID_HOST = 1, 0x84, "Connect Invalid Host";
    /// The queue's type does not allow the command.
    INVALID_QUEUE_TYPE = 1, 0x85, "Invalid Queue Type";
    /// The discovery log changed while it was read.
    DISCOVER_RESTART = 1, 0x90, "Discover Restart";
    /// The queue requires authentication.
    AUTHENTICATION_REQUIRED = 1, 0x91, "Authentication Required";
    /// A write to the medium failed.
    WRITE_FAULT = 2, 0x80, "Write Fault";
    /// A read of the medium failed.
    UNRECOVERED_READ_ERROR = 2, 0x81, "Unrecovered Read Error";
    /// Compare found a difference.
    COMPARE_FAILURE = 2, 0x85, "Compare Failure";
    /// Access is denied.
    ACCESS_DENIED = 2, 0x86, "Access Denied";
    /// An error inside the controller. It concerns only the path from this host to the namespace.
    INTERNAL_PATH_ERROR = 3, 0x00, "Internal Path Error";
    /// The controller has lost access to the namespace for good.
    ANA_PERSISTENT_LOSS = 3, 0x01, "Asymmetric Access Persistent Loss";
    /// The controller cannot access the namespace now, but another controller may.
    ANA_INACCESSIBLE = 3, 0x02, "Asymmetric Access Inaccessible";
    /// The access state of the namespace is changing.
    ANA_TRANSITION = 3, 0x03, "Asymmetric Access Transition";
    /// The controller detected an error of the path.
    CONTROLLER_PATH_ERROR = 3, 0x60, "Controller Pathing Error";
    /// The host detected an error of the path.
    HOST_PATH_ERROR = 3, 0x70, "Host Pathing Error";
    /// The host ended the command.
    ABORTED_BY_HOST = 3, 0x71, "Command Aborted By Host";
}

impl Status {
    /// Do Not Retry: the same command would fail again.
    pub const DO_NOT_RETRY: u16 = 1 << 14;

    /// Returns the status with Do Not Retry set.
    pub const fn dnr(self) -> Self {
        Self(self.0 | Self::DO_NOT_RETRY)
    }

    /// Returns true if the command completed without error.
    #[inline]
    pub fn is_success(self) -> bool {
        self.0 & 0x7FF == 0
    }

    /// Returns true if the controller cannot access the namespace, but another controller of the subsystem may:
    /// an error of type 3 that the controller reports (Base section 8.1.3).
    pub fn is_path_error(self) -> bool {
        let by_host = matches!(Status(self.0 & 0x7FF), Self::HOST_PATH_ERROR | Self::ABORTED_BY_HOST);
        self.0 & Self::DO_NOT_RETRY == 0 && self.0 >> 8 & 7 == 3 && !by_host
    }

    /// Returns true if the host may retry the command, possibly on another path. The Do Not Retry bit must be
    /// clear. The status must be a path error (type 3) or one of the temporary errors below.
    pub fn is_retryable(self) -> bool {
        let code = Status(self.0 & 0x7FF);
        self.0 & Self::DO_NOT_RETRY == 0
            && (self.0 >> 8 & 7 == 3
                || [
                    Self::INTERRUPTED,
                    Self::TRANSIENT_TRANSPORT_ERROR,
                    Self::NAMESPACE_NOT_READY,
                    Self::ABORTED_SQ_DELETION,
                ]
                .contains(&code))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, code) = (self.0 >> 8 & 7, self.0 & 0xFF);
        match self.name() {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "unknown status")?,
        }
        write!(f, " (type {class}, code {code:#04x})")
    }
}
