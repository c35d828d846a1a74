//! The specification of an NTB port.

use inlane_core::Result;
use inlane_core::port::spec::SpecText;
use inlane_pci::Address;
use std::path::PathBuf;
use std::time::Duration;

/// The longest path of a UNIX socket that the kernel accepts, in bytes without the terminating zero.
const LONGEST_PATH: usize = 107;

/// The specification of an NTB port: `ntb:SOCKET` or `ntb:ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NtbSpec {
    /// The specification's text, as the user wrote it.
    pub text: String,
    /// The bridge.
    pub bridge: BridgeSpec,
    /// How long to wait for the peer when the port is opened.
    pub wait: Duration,
}

/// A bridge between two ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeSpec {
    /// A twin between two processes.
    Twin {
        /// The socket's path.
        socket: PathBuf,
        /// True for the server, which creates the bridge and listens at the socket. False for the client, which joins it.
        server: bool,
    },
    /// An ivshmem device between two virtual machines.
    Device(Address),
}

impl NtbSpec {
    /// Parses `ntb:SOCKET[,role=server|client][,wait=SECONDS]` or `ntb:ADDRESS[,wait=SECONDS]`, with the address of a PCI device.
    ///
    /// # Errors
    /// If the argument or an option is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let mut spec = SpecText::parse(text)?;
        let wait = spec.option("wait", |value| {
            let seconds = value.strip_suffix('s').unwrap_or(value).parse::<f64>().ok();
            seconds
                .filter(|seconds| (0.0..=86400.0).contains(seconds))
                .ok_or_else(|| "give a time in seconds from 0 to 86400".into())
        })?;
        let bridge = match spec.argument().parse() {
            Ok(address) => BridgeSpec::Device(address),
            Err(_) => {
                let socket = spec.argument();
                let path =
                    std::path::absolute(socket).ok().filter(|path| path.as_os_str().len() <= LONGEST_PATH);
                let Some(socket) = path else {
                    return Err(spec.error(format!(
                        "give the path of a socket of at most {LONGEST_PATH} characters, or the address of a PCI device, such as \
                         /run/bridge.sock or 0000:00:05.0"
                    )));
                };
                let server = spec.option("role", |value| match value {
                    "client" => Ok(false),
                    "server" => Ok(true),
                    _ => Err("choose one of server, client".into()),
                })?;
                BridgeSpec::Twin { socket, server: server.unwrap_or(false) }
            }
        };
        spec.finish()?;
        Ok(Self { text: text.into(), bridge, wait: Duration::from_secs_f64(wait.unwrap_or(10.0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_and_devices_are_told_apart() {
        let spec = |text| NtbSpec::parse(text).unwrap();
        let twin = |socket: &str, server| BridgeSpec::Twin { socket: socket.into(), server };
        assert_eq!(spec("ntb:/run/b").bridge, twin("/run/b", false));
        assert_eq!(spec("ntb:/run/b,role=server").bridge, twin("/run/b", true));
        assert_eq!(spec("ntb:/run/b").wait, Duration::from_secs(10));
        assert_eq!(spec("ntb:/run/b,wait=0.5s").wait, Duration::from_millis(500));
        let device = BridgeSpec::Device("0000:00:05.0".parse().unwrap());
        assert_eq!((&spec("ntb:0000:00:05.0").bridge, &spec("ntb:00:05.0").bridge), (&device, &device));
        let long = format!("ntb:/{}", "a".repeat(107));
        for bad in ["ntb", "ntb:", &long, "ntb:/a,role=both", "ntb:00:05.0,role=server", "ntb:/a,wait=x"] {
            assert!(NtbSpec::parse(bad).is_err(), "{bad}");
        }
    }
}
