use super::*;
use proptest::prelude::*;

fn open(text: &str) -> Result<Namespace> {
    Namespace::open(&text.parse()?, 1, "nqn.2026-11.inlane:test", 1)
}

#[test]
fn specifications_are_read_from_the_end() {
    let parse = |text: &str| text.parse::<Specification>();
    let file = parse("file:/a,b,c,size=1M,lba=4096,ro").unwrap();
    assert_eq!(
        file.kind,
        StorageKind::File { path: "/a,b,c".into(), create_bytes: Some(1 << 20), direct: None }
    );
    assert_eq!((file.block_bytes, file.read_only), (Some(4096), true));
    assert_eq!(parse("memory:64K").unwrap().kind, StorageKind::Memory { bytes: 65536 });
    assert_eq!(
        parse("block:/dev/x,direct=off").unwrap().kind,
        StorageKind::Block { path: "/dev/x".into(), direct: Some(false) }
    );
    for bad in [
        "",
        "memory",
        "memory:",
        "memory:1000",
        "memory:0",
        "memory:1M,size=4",
        "disk:/x",
        "file:,ro",
        "file:/x,lba=1000",
        "file:/x,direct=maybe",
        "file:/x,size=big",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn memory_is_read_as_written_and_zeroed_exactly() {
    let memory = Memory::new(64 << 10, 1).unwrap();
    let pattern: Vec<u8> = (0..64 << 10).map(|n| (n % 251) as u8 + 1).collect();
    memory.write(0, &pattern);
    memory.zero(512, 32 << 10);
    let mut found = vec![0; 64 << 10];
    memory.read(0, &mut found);
    for (at, byte) in found.iter().enumerate() {
        let zeroed = (512..512 + (32 << 10)).contains(&at);
        assert_eq!(*byte, if zeroed { 0 } else { pattern[at] }, "byte {at}");
    }
    assert!(memory.equals(0, &pattern[..512]) && !memory.equals(512, &pattern[512..1024]));
}

/// Writers fill whole blocks with one byte each, so a block with two different bytes is torn.
#[test]
fn a_block_is_read_whole_while_it_is_written() {
    const BLOCK: usize = 4096;
    let memory = Memory::new(4 * BLOCK as u64, 1).unwrap();
    let is_whole = |block: &[u8]| block.iter().all(|byte| *byte == block[0]);
    let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
    std::thread::scope(|scope| {
        for byte in 1..=2 {
            let memory = &memory;
            scope.spawn(move || {
                while std::time::Instant::now() < end {
                    memory.write(0, &[byte; 2 * BLOCK]);
                    memory.zero(0, 2 * BLOCK as u64);
                }
            });
        }
        let mut found = vec![0; 2 * BLOCK];
        while std::time::Instant::now() < end {
            memory.read(0, &mut found);
            assert!(found.chunks(BLOCK).all(is_whole), "a torn block was read");
        }
    });
    let mut found = vec![0; BLOCK];
    memory.read(0, &mut found);
    assert!(is_whole(&found), "two writes were mixed");
}

/// The locks of more pages than there are locks are taken in several parts.
#[test]
fn a_large_range_is_zeroed() {
    let memory = Memory::new(64 << 20, 1).unwrap();
    let (first, last) = (4096 * 3 + 512, (40 << 20) + 1024);
    for at in (0..64 << 20).step_by(4096) {
        memory.write(at, &[7; 4096]);
    }
    memory.zero(first, last - first);
    let mut found = vec![0; 64 << 20];
    memory.read(0, &mut found);
    let (before, rest) = found.split_at(first as usize);
    let (zeroed, after) = rest.split_at((last - first) as usize);
    assert!(before.iter().chain(after).all(|byte| *byte == 7));
    assert!(zeroed.iter().all(|byte| *byte == 0));
}

#[test]
fn the_identity_of_a_file_is_stable_and_that_of_memory_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("file:{}/disk,size=1M", directory.path().display());
    let first = open(&text).unwrap().uuid;
    assert_eq!(first, open(&text).unwrap().uuid);
    // A host that continues with a file that took the place of another one would mix two drives.
    let path = directory.path().join("disk");
    std::fs::rename(&path, directory.path().join("old")).unwrap();
    assert_ne!(first, open(&text).unwrap().uuid);
    std::fs::rename(directory.path().join("old"), &path).unwrap();
    assert_eq!(first, open(&text).unwrap().uuid);
    std::fs::remove_file(&path).unwrap();
    assert_ne!(first, open(&text).unwrap().uuid);
    assert_ne!(open("memory:1M").unwrap().uuid, open("memory:1M").unwrap().uuid);
}

#[test]
fn a_file_is_served_by_one_writer_only() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("file:{}/disk,size=1M", directory.path().display());
    let _first = open(&text).unwrap();
    let error = open(&text).unwrap_err();
    assert!(error.to_string().contains("it is locked"), "{error}");
    assert_eq!(error.class(), inlane_core::error::Class::Environment);
    assert!(open(&format!("file:{}/disk,size=2M", directory.path().display())).is_err());
}

/// The kernel releases the lock of a killed target only when its last request has ended.
#[test]
fn a_lock_that_is_released_soon_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("file:{}/disk,size=1M", directory.path().display());
    let first = open(&text).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(first);
    });
    open(&text).unwrap();
    holder.join().unwrap();
}

#[test]
fn a_file_that_is_no_multiple_of_its_blocks_is_not_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    for options in ["size=1", "size=0", "size=10000,lba=4096"] {
        assert!(open(&format!("file:{},{options}", path.display())).is_err(), "{options}");
        assert!(!path.exists(), "{options} leaves a file");
    }
    // The largest file of any file system is smaller.
    let error = open(&format!("file:{},size={}", path.display(), (1_u64 << 63) - 512)).unwrap_err();
    assert!(!path.exists(), "a file is left after {error}");
    std::fs::write(&path, vec![0; 10_000]).unwrap();
    assert_eq!(open(&format!("file:{},lba=4096", path.display())).unwrap().blocks(), 2);
}

#[test]
fn files_that_cannot_be_served_are_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let error = open(&format!("file:{path}/none")).unwrap_err().to_string();
    assert!(error.contains("add ,size=SIZE"), "{error}");
    assert!(open(&format!("file:{path}")).is_err());
    std::fs::write(directory.path().join("small"), "x").unwrap();
    let error = open(&format!("file:{path}/small")).unwrap_err().to_string();
    assert!(error.contains("less than one block") && error.contains("enlarge it"), "{error}");
    let error = open("block:/dev/null").unwrap_err().to_string();
    assert!(error.contains("name one of these"), "{error}");
}

#[test]
fn a_change_of_the_size_is_detected() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let namespace = open(&format!("file:{},size=1M", path.display())).unwrap();
    assert!(!namespace.refresh().unwrap());
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert!(namespace.refresh().unwrap());
    assert_eq!(namespace.bytes(), 2 << 20);
}

proptest! {
    #[test]
    fn ranges_end_within_the_namespace(start: u64, count: u32) {
        let namespace = open("memory:1M").unwrap();
        if let Some((offset, length)) = namespace.range(start, count) {
            prop_assert!(offset + length <= namespace.bytes());
        } else {
            prop_assert!(u128::from(start) + u128::from(count) > u128::from(namespace.blocks()));
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,40}") {
        let _ = text.parse::<Specification>();
    }
}
