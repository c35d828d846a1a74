use super::*;
use crate::fake_sysfs::FakeSysfs;
use inlane_core::error::Class;
use inlane_core::mover::{CpuMover, Mover};
use std::fs;

const ADDRESS: &str = "0000:00:01.0";

fn spec(text: &str) -> BarSpec {
    format!("pci:{ADDRESS}/{text}").parse().unwrap()
}

fn all() -> Permission {
    Permission::default().read().write().device(ADDRESS.parse().unwrap())
}

#[test]
fn stores_change_the_range_and_nothing_else() {
    let fake = FakeSysfs::new();
    let address = fake.memory_device(ADDRESS);
    let bar = Bar::open(&fake.sysfs(), &spec("bar2@6K+4"), &all()).unwrap();
    bar.write_u32(0, u32::from_le_bytes(*b"abcd")).unwrap();
    assert!(matches!(bar.write_u32(4, 1), Err(Error::TooSmall { .. })));
    assert!(matches!(bar.read_u32(usize::MAX - 3), Err(Error::TooSmall { .. })));
    let file = fs::read(fake.sysfs().device(address).join("resource2")).unwrap();
    assert_eq!(&file[6143..6149], b"\0abcd\0");
    let region = bar.region();
    assert_eq!((region.len(), region.location().to_string().as_str()), (4, "pci:0000:00:01.0/bar2"));
}

#[test]
fn registers_and_regions_are_the_same_bytes() {
    let fake = FakeSysfs::new();
    fake.memory_device(ADDRESS);
    let bar = Bar::open(&fake.sysfs(), &spec("bar2@64K+64K:wc"), &all()).unwrap();
    let region = bar.region();
    assert!(matches!(region.location(), Location::Bar { write_combining: true, .. }));
    bar.write_u32(8, 0x1234_5678).unwrap();
    bar.write_u64(16, 0x1_0000_0002).unwrap();
    let copy = Region::host(bar.len()).unwrap();
    CpuMover::widest().reading_bars(true).submit(&region, &copy).unwrap();
    // SAFETY: `copy` is longer than six words, and no transfer to it is in flight.
    let words = unsafe { std::slice::from_raw_parts(copy.as_ptr().cast::<u32>(), 6) };
    assert_eq!(words, [0, 0, 0x1234_5678, 0, 2, 1]);
    assert_eq!(bar.read_u32(20).unwrap(), 1);
    assert!(bar.read_u32(2).is_err());
    assert!(bar.write_u64(4, 0).is_err());
}

#[test]
fn access_needs_permission_a_range_and_no_driver() {
    let fake = FakeSysfs::new();
    let address = fake.memory_device(ADDRESS);
    let open =
        |text: &str, permission: Permission| Bar::open(&fake.sysfs(), &spec(text), &permission).map(|_| ());
    let allowed = Permission::default().device(address);
    assert!(matches!(open("bar2", allowed.clone()), Err(Error::NotPermitted { .. })), "no flag");
    assert!(matches!(open("bar2", allowed.clone().write()), Err(Error::NotPermitted { .. })), "no range");
    assert!(matches!(open("bar2", Permission::default().read()), Err(Error::NotAllowed { .. })));
    open("bar2", allowed.clone().read()).unwrap();
    open("bar2@0+4K", allowed.write()).unwrap();

    fake.link(address, "driver", "bus/pci/drivers/nvme");
    let error = open("bar2@0+4K", all().device(address)).unwrap_err();
    assert!(error.to_string().contains("allow-device applies only"), "{error}");
    let error = open("bar2@0+4K", all()).unwrap_err();
    assert!(matches!(&error, Error::Held { driver, .. } if driver == "nvme"));
    assert_eq!(error.class(), Class::Environment);
    assert!(error.to_string().contains("devices/0000:00:01.0/driver/unbind"), "{error}");
}

#[test]
fn a_mapping_allows_what_is_permitted() {
    let fake = FakeSysfs::new();
    let address = fake.memory_device(ADDRESS);
    let reader = Permission::default().read().device(address);
    let bar = Bar::open(&fake.sysfs(), &spec("bar2"), &reader).unwrap();
    assert!(matches!(
        bar.write_u32(0, 1),
        Err(Error::NotPermitted { what: "written only if you allow it", .. })
    ));
    assert_eq!(bar.len(), 1 << 20);
    let writer = Permission::default().write().device(address);
    let bar = Bar::open(&fake.sysfs(), &spec("bar2@0+4K"), &writer).unwrap();
    bar.write_u32(0, 1).unwrap();
    assert!(matches!(bar.read_u32(0), Err(Error::NotPermitted { what: "read only if you allow it", .. })));
}

#[test]
fn missing_bars_and_unready_devices_are_errors() {
    let fake = FakeSysfs::new();
    let address = fake.memory_device(ADDRESS);
    let open = |text: &str| Bar::open(&fake.sysfs(), &spec(text), &all()).map(|_| ()).unwrap_err();
    assert!(open("bar0@0+4K").to_string().contains("the device has bar2"));
    assert!(open("bar2@1M+1").to_string().contains("has 1048576 bytes"));
    assert!(matches!(open("bar2@0+2M"), Error::TooSmall { .. }));
    let home = fake.sysfs().device(address);
    // Truncate the file, because the kernel's file may be shorter than the size that sysfs shows.
    fs::File::options().write(true).open(home.join("resource2")).unwrap().set_len(4096).unwrap();
    assert!(matches!(open("bar2@0+8K"), Error::TooSmall { .. }));
    fs::remove_file(home.join("resource2_wc")).unwrap();
    assert!(matches!(open("bar2@0+4K:wc"), Error::Unsupported { .. }));
    fs::write(home.join("config"), [0xf4, 0x1a, 0x10, 0x11, 0, 0]).unwrap();
    assert!(open("bar2@0+4K").to_string().contains("memory decoding is off"));
    fs::write(home.join("power_state"), "D3cold\n").unwrap();
    assert!(open("bar2@0+4K").to_string().contains("D3cold"));
    let other = "pci:0000:00:09.0/bar2@0+4K".parse().unwrap();
    for permission in [all(), Permission::default()] {
        let opened = Bar::open(&fake.sysfs(), &other, &permission);
        assert!(matches!(opened, Err(Error::NoDevice { .. })), "existence is checked before permission");
    }
}

#[test]
fn errors_name_what_vfio_lacks() {
    let fake = FakeSysfs::new();
    let address = fake.memory_device(ADDRESS);
    fake.link(address, "driver", "bus/pci/drivers/vfio-pci");
    let open = || Bar::open(&fake.sysfs(), &spec("bar2@0+4K"), &all()).map(|_| ()).unwrap_err();
    assert!(matches!(open(), Error::NoIommu { .. }));
    fake.link(address, "iommu_group", "kernel/iommu_groups/7");
    assert!(open().to_string().contains("modprobe"), "no /dev/vfio");
    fs::write(fake.path("dev/vfio/vfio"), "").unwrap();
    assert!(matches!(open(), Error::NotReady { .. }), "an ordinary file is not a VFIO container");
}
