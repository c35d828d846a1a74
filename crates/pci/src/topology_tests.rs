use super::*;
use crate::fake_sysfs::FakeSysfs;
use proptest::prelude::*;

fn link(
    speed: &'static str,
    width: &'static str,
    max: (&'static str, &'static str),
) -> [(&'static str, &'static str); 4] {
    [
        ("current_link_speed", speed),
        ("current_link_width", width),
        ("max_link_speed", max.0),
        ("max_link_width", max.1),
    ]
}

#[test]
fn a_narrow_link_is_found_in_the_tree() {
    let fake = FakeSysfs::new();
    let gen4 = "16.0 GT/s PCIe\n";
    let mut port = link(gen4, "8\n", (gen4, "8\n")).to_vec();
    port.push(("class", "0x060400\n"));
    let mut gpu = link(gen4, "8\n", (gen4, "16\n")).to_vec();
    gpu.extend([
        ("class", "0x030200\n"),
        ("numa_node", "1\n"),
        ("vendor", "0x10de\n"),
        ("local_cpulist", "0-15\n"),
    ]);
    let root = fake.device("0000:00:01.0", &[], &port);
    let card = fake.device("0000:01:00.0", &["0000:00:01.0"], &gpu);
    let nic = fake.device("0000:00:02.0", &[], &[("class", "0x020000\n"), ("numa_node", "-1\n")]);
    fake.link(nic, "driver", "bus/pci/drivers/virtio-pci");
    fake.link(nic, "iommu_group", "kernel/iommu_groups/12");
    std::fs::create_dir_all(fake.sysfs().device(nic).join("net/eth0")).unwrap();

    let topology = Topology::read(&fake.sysfs());
    assert_eq!(topology.roots().map(|d| d.address).collect::<Vec<_>>(), [root, nic]);
    assert_eq!(topology.children(root).map(|d| d.address).collect::<Vec<_>>(), [card]);
    let walk: Vec<_> = topology.walk().into_iter().map(|(depth, device)| (depth, device.address)).collect();
    assert_eq!(walk, [(0, root), (1, card), (0, nic)]);
    let gpu = topology.get(card).unwrap();
    assert_eq!((gpu.kind, gpu.numa_node, gpu.vendor), (FunctionKind::Gpu, Some(1), 0x10de));
    assert_eq!(topology.shortfall(gpu).unwrap().to_string(), "x8 of x16 (the slot has x8)");
    assert_eq!(topology.path(card).len(), 1);
    assert_eq!(topology.narrowest(card).unwrap().1.to_string(), "Gen4 x8");
    let nic = topology.get(nic).unwrap();
    assert_eq!(
        (nic.kind, nic.numa_node, nic.driver.as_deref()),
        (FunctionKind::Nic, None, Some("virtio-pci"))
    );
    assert_eq!((nic.iommu_group, nic.names.as_slice()), (Some(12), ["eth0".to_string()].as_slice()));
}

#[test]
fn a_machine_without_pci_has_an_empty_topology() {
    let topology = Topology::read(&Sysfs::at("/nonexistent"));
    assert_eq!(topology.devices().count(), 0);
    let address = "0000:00:00.0".parse().unwrap();
    assert!(matches!(Device::read(&Sysfs::at("/nonexistent"), address), Err(Error::NoDevice { .. })));
}

#[test]
fn bars_are_parsed_from_the_kernels_list() {
    let text = "0x00000000fea00000 0x00000000fea03fff 0x0000000000140204\n\
                0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                0x000000000000c000 0x000000000000c01f 0x0000000000040101\n\
                nonsense\n\
                0xffff 0x0 0x200\n\
                0x0 0xffffffffffffffff 0x200\n\
                0x0000000000001000 0x0000000000001fff 0x0000000000000200\n";
    let bars = bars(text);
    assert_eq!(bars.len(), 2, "{bars:?}");
    assert_eq!((bars[0].index, bars[0].size_bytes, bars[0].memory, bars[0].wide), (0, 0x4000, true, true));
    assert_eq!((bars[1].index, bars[1].size_bytes, bars[1].memory), (2, 32, false));
}

#[test]
fn a_device_that_is_its_own_parent_is_a_root() {
    let fake = FakeSysfs::new();
    let address = fake.device("0000:00:01.0", &["0000:00:01.0"], &[]);
    let topology = Topology::read(&fake.sysfs());
    assert!(topology.path(address).is_empty());
    assert_eq!(topology.roots().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn hostile_attributes_are_left_out(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let fake = FakeSysfs::new();
        let address = fake.device("0000:00:01.0", &[], &[]);
        for name in ["vendor", "class", "numa_node", "resource", "current_link_speed", "current_link_width",
                     "max_link_speed", "max_link_width", "local_cpulist", "power_state"] {
            std::fs::write(fake.sysfs().device(address).join(name), &text).unwrap();
        }
        let topology = Topology::read(&fake.sysfs());
        topology.shortfall(topology.get(address).unwrap());
    }

    #[test]
    fn no_resource_text_panics(text in "(0x[0-9a-f]{0,18}[ \n]?){0,24}") {
        bars(&text);
    }
}
