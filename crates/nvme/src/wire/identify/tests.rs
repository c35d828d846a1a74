use super::*;
use std::mem::{offset_of, size_of};
use zerocopy::FromZeros;

#[test]
fn structures_have_the_sizes_and_offsets_of_the_specification() {
    assert_eq!(size_of::<IdentifyController>(), IDENTIFY_BYTES);
    for (offset, expected) in [
        (offset_of!(IdentifyController, cntlid), 78),
        (offset_of!(IdentifyController, cntrltype), 111),
        (offset_of!(IdentifyController, kas), 320),
        (offset_of!(IdentifyController, sqes), 512),
        (offset_of!(IdentifyController, maxcmd), 514),
        (offset_of!(IdentifyController, oncs), 520),
        (offset_of!(IdentifyController, vwc), 525),
        (offset_of!(IdentifyController, sgls), 536),
        (offset_of!(IdentifyController, subnqn), 768),
        (offset_of!(IdentifyController, ioccsz), 1792),
    ] {
        assert_eq!(offset, expected);
    }
    assert_eq!(size_of::<IdentifyNamespace>(), IDENTIFY_BYTES);
    for (offset, expected) in [
        (offset_of!(IdentifyNamespace, nvmcap), 48),
        (offset_of!(IdentifyNamespace, npwg), 64),
        (offset_of!(IdentifyNamespace, nsattr), 99),
        (offset_of!(IdentifyNamespace, nguid), 104),
        (offset_of!(IdentifyNamespace, lbaf), 128),
    ] {
        assert_eq!(offset, expected);
    }
    assert_eq!(size_of::<DiscoveryHeader>(), 1024);
    assert_eq!(size_of::<DiscoveryEntry>(), 1024);
    assert_eq!(offset_of!(DiscoveryEntry, trsvcid), 32);
    assert_eq!(offset_of!(DiscoveryEntry, traddr), 512);
}

#[test]
fn limits_of_a_controller() {
    let mut controller = IdentifyController::new_zeroed();
    assert_eq!((controller.max_transfer_bytes(), controller.max_capsule_data()), (None, 0));
    controller.mdts = 5;
    controller.ioccsz = (64 / 16 + 8192 / 16).into();
    assert_eq!((controller.max_transfer_bytes(), controller.max_capsule_data()), (Some(128 << 10), 8192));
    controller.mdts = 255;
    controller.ioccsz = u32::MAX.into();
    assert_eq!((controller.max_transfer_bytes(), controller.max_capsule_data()), (Some(u64::MAX), u32::MAX));
}

#[test]
fn a_namespace_with_an_impossible_format_has_no_block_size() {
    let mut namespace = IdentifyNamespace::new_zeroed();
    assert_eq!(namespace.block_bytes(), None);
    namespace.lbaf[0].lbads = 12;
    assert_eq!(namespace.block_bytes(), Some(4096));
    namespace.flbas = 1;
    assert_eq!(namespace.block_bytes(), None, "format 1 does not exist");
    namespace.flbas = 0;
    namespace.lbaf[0].lbads = 64;
    assert_eq!(namespace.block_bytes(), None);
    namespace.lbaf[0] = LbaFormat { ms: 8.into(), lbads: 9, rp: 0 };
    assert_eq!(namespace.block_bytes(), None, "metadata is unsupported");
}

#[test]
fn texts_from_the_wire_cannot_control_a_terminal() {
    assert_eq!(text(b"abc  \x1b[2J\0garbage"), "abc  ?[2J");
    assert_eq!(text(&padded::<8>("ab")), "ab");
    assert_eq!(text(&terminated::<4>("abcdef")), "abc");
}

#[test]
fn lists_of_descriptors_end_at_a_malformed_one() {
    let list = [[1, 8, 0, 0].as_slice(), &[7; 8], &[9, 1, 0, 0, 5], &[3, 16, 0, 0], &[6; 16]].concat();
    let all = [(1, &[7; 8][..]), (9, &[5]), (3, &[6; 16])];
    assert_eq!(descriptors(&list).collect::<Vec<_>>(), all);
    assert_eq!(descriptors(&[&list[..], &[0; 99]].concat()).collect::<Vec<_>>(), all);
    assert_eq!(descriptors(&list[..list.len() - 1]).collect::<Vec<_>>(), all[..2]);
    assert_eq!(descriptors(&[2, 0, 0, 0, 1, 2]).count() + descriptors(&[2, 16, 0]).count(), 0);
}
