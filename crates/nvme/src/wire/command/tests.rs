use super::*;
use std::collections::HashSet;
use std::mem::{offset_of, size_of};
use zerocopy::IntoBytes;

#[test]
fn entries_have_the_sizes_and_offsets_of_the_specification() {
    assert_eq!(size_of::<Command>(), 64);
    assert_eq!(offset_of!(Command, sgl), 24);
    assert_eq!(offset_of!(Command, cdw10), 40);
    assert_eq!(size_of::<Completion>(), 16);
    assert_eq!(offset_of!(Completion, cid), 12);
    assert_eq!(size_of::<ConnectData>(), 1024);
    assert_eq!(offset_of!(ConnectData, subsystem_nqn), 256);
    assert_eq!(size_of::<dsm::Range>(), 16);
}

#[test]
fn commands_on_blocks_have_their_fields_in_the_right_bytes() {
    let read = Command::blocks(io::READ, 7, 0x1_2345_6789, 8, Sgl::transport(4096));
    let bytes = read.as_bytes();
    assert_eq!((bytes[0], bytes[1], bytes[4], bytes[39]), (0x02, 0x40, 7, 0x5A));
    assert_eq!(bytes[40..50], [0x89, 0x67, 0x45, 0x23, 1, 0, 0, 0, 7, 0]);
    assert_eq!((read.lba(), read.block_count()), (0x1_2345_6789, 8));
    assert!(read.receives_data() && !read.sends_data());
}

#[test]
fn connect_has_its_fields_in_the_right_bytes() {
    let connect = Command::connect(3, 128, connect::DISABLE_FLOW_CONTROL, 15_000);
    let bytes = connect.as_bytes();
    assert_eq!((bytes[0], bytes[4], bytes[39]), (0x7F, 0x01, 0x01));
    assert_eq!(bytes[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 0x98, 0x3A, 0, 0]);
    assert!(connect.sends_data() && !connect.receives_data());
    assert!(!Command::property_get(property::CAP, true).sends_data());
}

#[test]
fn capabilities_are_read_as_they_were_written() {
    let cap = Cap::new(1024, 15);
    assert_eq!((cap.max_entries(), cap.timeout_500ms()), (1024, 15));
    assert_eq!(Cap::new(65_536, 0).max_entries(), 65_536);
}

#[test]
fn statuses_have_different_codes_and_names() {
    let names: HashSet<_> = status::ALL.iter().map(|status| status.name().expect("a name")).collect();
    assert_eq!(names.len(), status::ALL.len());
    assert_eq!(Status::LBA_OUT_OF_RANGE.dnr().to_string(), "LBA Out of Range (type 0, code 0x80)");
    assert_eq!(Status(0x7FF).to_string(), "unknown status (type 7, code 0xff)");
    let completion = Completion::new(9, Status::LBA_OUT_OF_RANGE.dnr(), 1, 2, 3);
    assert_eq!(completion.status(), Status::LBA_OUT_OF_RANGE.dnr());
    assert!(!completion.status().is_retryable() && Status::HOST_PATH_ERROR.is_retryable());
    assert_eq!(completion.result(), 3 << 32 | 2);
}
