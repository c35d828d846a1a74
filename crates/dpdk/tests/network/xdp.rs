//! Acts as another application: loads an XDP program by bpf(2), and attaches it by rtnetlink, as `ip link set
//! dev v0 xdp` does.

use super::output_of_ip;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `XDP_FLAGS_DRV_MODE`: the driver runs the program.
pub const DRIVER_MODE: u32 = 1 << 2;
/// `XDP_FLAGS_SKB_MODE`: the kernel runs the program after the driver has received the frame.
pub const GENERIC_MODE: u32 = 1 << 1;

pub fn load_passing_program() -> OwnedFd {
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_XDP: u32 = 6;
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: *const u64,
        license: *const libc::c_char,
        log: [u64; 2],
        kernel: u32,
        flags: u32,
    }
    // The program is: r0 = XDP_PASS; exit.
    let instructions: [u64; 2] = [0xb7 | 2 << 32, 0x95];
    let load = Load {
        kind: BPF_PROG_TYPE_XDP,
        count: 2,
        instructions: instructions.as_ptr(),
        license: c"Apache-2.0".as_ptr(),
        log: [0; 2],
        kernel: 0,
        flags: 0,
    };
    // SAFETY: the attributes and what they point to outlive the call.
    let code = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    assert!(code >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor was just opened, and no other code owns it.
    unsafe { OwnedFd::from_raw_fd(code as i32) }
}

/// Attaches a program to an interface of this thread's namespace. It stays attached when `program` is closed.
pub fn attach(interface: &str, program: &OwnedFd, mode: u32) {
    const IFLA_XDP: u16 = 43;
    const NLA_F_NESTED: u16 = 1 << 15;
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: the string is terminated.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let mut message = Vec::new();
    let mut u16s = |words: &[u16]| words.iter().for_each(|word| message.extend(word.to_ne_bytes()));
    // The message is nlmsghdr, ifinfomsg, and IFLA_XDP { IFLA_XDP_FD, IFLA_XDP_FLAGS }.
    u16s(&[52, 0, libc::RTM_SETLINK, (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16, 1, 0, 0, 0]);
    u16s(&[0, 0, index as u16, (index >> 16) as u16, 0, 0, 0, 0]);
    let descriptor = program.as_raw_fd();
    u16s(&[20, IFLA_XDP | NLA_F_NESTED, 8, 1, descriptor as u16, 0, 8, 3, mode as u16, 0]);
    // SAFETY: the message and the answer's buffer outlive the calls.
    let answer = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
        assert!(fd >= 0);
        let socket = OwnedFd::from_raw_fd(fd);
        let sent = libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0);
        assert_eq!(sent, message.len() as isize);
        let mut answer = [0i32; 256];
        assert!(libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), 1024, 0) >= 20);
        answer
    };
    // The error number follows the four words of nlmsghdr. 0 means success.
    assert_eq!(answer[4], 0, "attaching to {interface}: {}", std::io::Error::from_raw_os_error(-answer[4]));
}

/// Returns the id of the interface's XDP program, as `ip link` shows it. Returns `None` if the interface has
/// none.
pub fn program_id(interface: &str) -> Option<u32> {
    let shown = output_of_ip(&format!("-details link show {interface}"));
    let mut words = shown.split_whitespace().skip_while(|word| *word != "prog/xdp");
    words.nth(2)?.parse().ok()
}
