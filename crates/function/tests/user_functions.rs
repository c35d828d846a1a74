//! Tests of users' packet functions, of the cache of compiled functions, and of error messages.

mod harness;

use harness::{Fate, run};
use inlane_function::{Error, PacketFunction};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Tests hold this lock while they set environment variables, because these are shared by the whole process.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// Runs the test `what` with an empty cache that no other test uses. Passes the cache's directory to the
/// test.
fn with_cache<T>(what: impl FnOnce(&Path) -> T) -> T {
    let _turn = ENVIRONMENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let cache = tempfile::tempdir().expect("a temporary directory");
    // SAFETY: all tests in this process hold the lock while they use the environment.
    unsafe { std::env::set_var("INLANE_CACHE", cache.path()) };
    what(cache.path())
}

fn example(name: &str) -> String {
    format!("{}/../../examples/functions/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn file(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("mine.cu");
    std::fs::write(&path, text).expect("written");
    path
}

fn words(state: &[u8]) -> Vec<u64> {
    state.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight"))).collect()
}

#[test]
fn truncate_shortens_long_packets() {
    with_cache(|_| {
        let function =
            PacketFunction::parse(&example("truncate.cu:truncate:96")).expect("the example exists");
        let mut instance = function.instance().expect("the source compiles");
        let frames: Vec<Vec<u8>> = (0..200).map(|length| vec![length as u8; length]).collect();
        let fates = run(&mut instance, &frames);
        for (frame, fate) in frames.iter().zip(fates) {
            assert_eq!(fate, Fate::Forward(frame[..frame.len().min(96)].to_vec()));
        }
        assert_eq!(words(instance.state()), [96, (97..200).map(|length| length - 96).sum()]);
    });
}

#[test]
fn vxlan_selects_by_network() {
    with_cache(|_| {
        let function = PacketFunction::parse(&example("vxlan.cu:only-network:0x2a"))
            .expect("hyphens harness for underscores");
        let mut instance = function.instance().expect("the source compiles");
        let frame = |network: u8, flags: u8, port: u16| {
            let mut frame = vec![0u8; 60];
            frame[12] = 8;
            frame[14] = 0x45;
            frame[23] = 17;
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            frame[42] = flags;
            frame[48] = network;
            frame
        };
        let frames =
            [frame(42, 8, 4789), frame(43, 8, 4789), frame(42, 0, 4789), frame(42, 8, 53), vec![0; 20]];
        let expected = [
            Fate::Forward(frames[0].clone()),
            Fate::Port(1, frames[1].clone()),
            Fate::Drop,
            Fate::Drop,
            Fate::Drop,
        ];
        assert_eq!(run(&mut instance, &frames), expected);
    });
}

#[test]
fn sizes_counts_packets_by_length() {
    with_cache(|_| {
        let mut instance = PacketFunction::parse(&example("sizes.cu"))
            .expect("one function")
            .instance()
            .expect("the source compiles");
        let frames: Vec<Vec<u8>> = [0, 63, 64, 127, 128, 9000].map(|length| vec![0; length]).into();
        assert_eq!(
            run(&mut instance, &frames),
            frames.iter().cloned().map(Fate::Forward).collect::<Vec<_>>()
        );
        let steps = words(instance.state());
        assert_eq!((&steps[..3], steps[31]), (&[2, 2, 1][..], 1));
    });
}

#[test]
fn declared_counters_are_reported() {
    with_cache(|folder| {
        let text = "#include <inlane.h>\nstruct count { uint8_t pad; uint64_t all; uint32_t by_length[3]; uint32_t odd;\n\
                    INLANE inlane::verdict packet(inlane::packet &p) { inlane::add(all, 1); inlane::add(by_length[p.length() % 3], 1);\n\
                    inlane::add(odd, p.length() % 2); return inlane::forward; } };\nINLANE_FUNCTION(count)\n\
                    INLANE_COUNTER(count, all)\nINLANE_COUNTER(count, by_length)\nINLANE_COUNTER(count, odd)\n\
                    #if INLANE_GPU\nINLANE_COUNTER(count, pad)\n#endif\n";
        let function = PacketFunction::from_file(&file(folder, text), "", "").expect("one function");
        assert_eq!(function.declared_counters(), ["all", "by_length", "odd", "pad"]);
        let mut instance = function.instance().expect("the source compiles");
        let frames: Vec<Vec<u8>> = [3, 4, 5, 7, 10].map(|length| vec![0; length]).into();
        run(&mut instance, &frames);
        let counters: Vec<_> =
            instance.report().counters.into_iter().map(|counter| (counter.name, counter.value)).collect();
        let expected = [("all", 5), ("by_length_0", 1), ("by_length_1", 3), ("by_length_2", 1), ("odd", 3)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)));
        for wrong in ["INLANE_COUNTER(count, none)", "INLANE_COUNTER(count, pad)"] {
            let text = format!("{text}{wrong}\n");
            let function = PacketFunction::from_file(&file(folder, &text), "", "").expect("one function");
            assert!(matches!(function.instance(), Err(Error::Compile { .. })), "{wrong}");
        }
    });
}

/// Runs the function on one packet in a buffer of `room` bytes. Returns the packet after it, or `None` if it was dropped.
fn run_in_room(instance: &mut inlane_function::Instance, frame: &[u8], room: usize) -> Option<Vec<u8>> {
    let mut bytes = frame.to_vec();
    bytes.resize(room, 0xee);
    let length = frame.len() as u32;
    let packet = inlane_core::Packet { address: bytes.as_mut_ptr() as u64, length, port: 0, cookie: 0 };
    let mut verdicts = [inlane_core::ring::layout::PacketVerdict::default()];
    instance.set_room(room as u32);
    // SAFETY: the buffer has `room` bytes, and nothing else uses it.
    let changed = unsafe { instance.run_packets(&[packet], &mut verdicts, 0) };
    if changed == inlane_core::ring::layout::VERDICTS {
        if verdicts[0].verdict == inlane_core::ring::layout::DROP {
            return None;
        }
        bytes.truncate(verdicts[0].length as usize);
    } else {
        bytes.truncate(frame.len());
    }
    Some(bytes)
}

#[test]
fn tags_are_pushed_and_popped() {
    with_cache(|_| {
        let instance = |spec: &str| {
            PacketFunction::parse(&example(spec)).expect("exists").instance().expect("the source compiles")
        };
        let (mut push, mut pop) = (instance("vlan.cu:push_vlan:0x102a"), instance("vlan.cu:pop-vlan"));
        for length in [0usize, 11, 12, 13, 60, 61, 1514, 9000] {
            let frame: Vec<u8> = (0..length).map(|i| (i * 7 % 251) as u8).collect();
            let tagged = run_in_room(&mut push, &frame, length + 4);
            let expected = (length >= 12).then(|| [&frame[..12], &[0x81, 0, 0, 42], &frame[12..]].concat());
            assert_eq!(tagged, expected, "{length}");
            let Some(tagged) = tagged else { continue };
            assert_eq!(run_in_room(&mut pop, &tagged, length + 4), Some(frame.clone()), "{length}");
            assert_eq!(run_in_room(&mut pop, &frame, length), Some(frame.clone()), "no tag to remove");
            assert_eq!(run_in_room(&mut push, &frame, length + 3), None, "a byte is missing");
        }
        assert_eq!(push.report().counter("refused_packets"), Some(2 + 6));
        assert_eq!(pop.report().counter("untagged_packets"), Some(6));
    });
}

#[test]
fn bytes_are_inserted_and_removed_anywhere() {
    with_cache(|folder| {
        let text = "#include <inlane.h>\nstruct edit { static constexpr uint32_t parameters = 3; uint64_t insert, at, bytes, refused;\n\
                    INLANE inlane::verdict packet(inlane::packet &p) { uint32_t a = at, n = bytes;\n\
                    if (insert ? !p.insert(a, n) : !p.remove(a, n)) refused++;\n\
                    else if (insert) for (uint32_t i = 0; i < n && i < 999; i++) p.set_u8(a + i, 0xab);\n\
                    return inlane::forward; } };\nINLANE_FUNCTION(edit)\n";
        let path = file(folder, text);
        let frame: Vec<u8> = (0..100).collect();
        for (insert, at, bytes, expected) in [
            (1, 0, 50, Some([&[0xab; 50][..], &frame].concat())),
            (1, 100, 3, Some([&frame[..], &[0xab; 3]].concat())),
            (1, 100, 0, Some(frame.clone())),
            (1, 101, 1, None),
            (1, 0, 101, None),
            (1, 0, u32::MAX, None),
            (1, u32::MAX, 1, None),
            (0, 0, 50, Some(frame[50..].to_vec())),
            (0, 99, 1, Some(frame[..99].to_vec())),
            (0, 0, 100, None),
            (0, 99, 2, None),
            (0, u32::MAX, 2, None),
            (0, 1, u32::MAX, None),
        ] {
            let parameters = format!("{insert},{at},{bytes}");
            let function = PacketFunction::from_file(&path, "edit", &parameters).expect("one function");
            let mut instance = function.instance().expect("the source compiles");
            let refused = expected.is_none() as u64;
            let expected = expected.unwrap_or_else(|| frame.clone());
            assert_eq!(run_in_room(&mut instance, &frame, 200), Some(expected), "{parameters}");
            assert_eq!(words(instance.state())[3], refused, "{parameters}");
        }
    });
}

#[test]
fn packets_grow_up_to_their_room() {
    with_cache(|folder| {
        let text = "#include <inlane.h>\nstruct grow { uint64_t refused; INLANE inlane::verdict packet(inlane::packet &p) {\n\
                    if (!p.resize(p.length() + 4)) refused++; return inlane::forward; } };\nINLANE_FUNCTION(grow)\n";
        let function =
            PacketFunction::from_file(&file(folder, text), "grow", "").expect("the example exists");
        let mut instance = function.instance().expect("the source compiles");
        let mut bytes = [0u8; 64];
        let packet =
            inlane_core::Packet { address: bytes.as_mut_ptr() as u64, length: 60, port: 0, cookie: 0 };
        let mut verdicts = [Default::default()];
        // SAFETY: the packet is on this stack, and its buffer has 64 bytes.
        unsafe {
            assert_eq!(
                instance.run_packets(&[packet], &mut verdicts, 0),
                inlane_core::ring::layout::UNCHANGED
            );
            instance.set_room(64);
            assert_eq!(
                instance.run_packets(&[packet], &mut verdicts, 0),
                inlane_core::ring::layout::VERDICTS
            );
        }
        assert_eq!((verdicts[0].length, words(instance.state())[0]), (64, 1));
    });
}

#[test]
fn compiled_functions_are_cached() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    with_cache(|cache| {
        let text = "#include <inlane.h>\nstruct mine { INLANE inlane::verdict packet(inlane::packet &) { return inlane::drop; } };\n\
                    INLANE_FUNCTION(mine)\n";
        let path = file(cache, text);
        let load = || {
            let mut instance = PacketFunction::from_file(&path, "mine", "")
                .expect("there")
                .instance()
                .expect("the source compiles");
            assert_eq!(run(&mut instance, &[vec![1, 2, 3]]), [Fate::Drop]);
        };
        let stored = || -> Vec<(PathBuf, u64)> {
            let folder = cache.join("functions");
            assert_eq!(std::fs::metadata(&folder).expect("made").mode() & 0o777, 0o700);
            let entries = std::fs::read_dir(folder).expect("made").map(|entry| entry.expect("listed").path());
            entries.map(|path| (path.clone(), std::fs::metadata(&path).expect("there").ino())).collect()
        };
        load();
        let first = stored();
        assert_eq!(first.len(), 1, "one object and no temporary file: {first:?}");
        load();
        assert_eq!(stored(), first, "the second load used the cache");
        // If a cached object is incomplete, or if other users can write to it, it is compiled again.
        let object = &first[0].0;
        let bytes = std::fs::read(object).expect("readable");
        std::fs::write(object, &bytes[..bytes.len() - 1]).expect("writable");
        load();
        assert_eq!(std::fs::read(object).expect("readable"), bytes, "compiled again");
        std::fs::set_permissions(object, std::fs::Permissions::from_mode(0o777)).expect("ours");
        let before = stored();
        load();
        assert_ne!(stored(), before, "compiled again");
        std::fs::set_permissions(cache.join("functions"), std::fs::Permissions::from_mode(0o777))
            .expect("ours");
        load();
    });
}

/// Callers drop privileges before they load the function. Until then, the compiler must not run.
#[test]
fn the_compiler_does_not_run_before_the_function_is_loaded() {
    use std::os::unix::fs::PermissionsExt;
    with_cache(|folder| {
        let (compiler, marker) = (folder.join("compiler"), folder.join("ran"));
        std::fs::write(&compiler, format!("#!/bin/sh\ntouch {}\nexit 1\n", marker.display()))
            .expect("written");
        std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o700))
            .expect("the script belongs to this user");
        // SAFETY: as in `with_cache`.
        unsafe { std::env::set_var("CXX", &compiler) };
        let function = PacketFunction::parse(&example("sizes.cu")).expect("the example exists");
        let _ = (
            function.name(),
            function.about(),
            function.source().map(|source| source.for_gpu()),
            function.declared_counters(),
        );
        let ran_before = marker.exists();
        let loaded = function.instance();
        // SAFETY: as in `with_cache`.
        unsafe { std::env::remove_var("CXX") };
        assert!(!ran_before, "parsing ran the compiler");
        assert!(loaded.is_err() && marker.exists(), "loading runs the compiler");
    });
}

#[test]
fn messages_name_the_mistake() {
    with_cache(|folder| {
        let refused = |name: &str, parameters: &str, text: &str| {
            let made = PacketFunction::from_file(&file(folder, text), name, parameters);
            made.and_then(|function| function.instance()).err().expect("the source or a name is wrong")
        };
        let good = "#include <inlane.h>\nstruct a { INLANE inlane::verdict packet(inlane::packet &) { return 0; } };\n";
        let both = format!("{good}INLANE_FUNCTION(a)\nstruct b : a {{}};\nINLANE_FUNCTION(b)\n");
        let message = |error: Error| {
            assert_eq!(error.class(), inlane_core::error::Class::Usage);
            error.to_string()
        };
        assert!(message(refused("a", "", good)).contains("INLANE_FUNCTION(name"));
        assert!(message(refused("other", "", &both)).contains("no function 'other'; choose one of a, b"));
        assert!(message(refused("", "", &both)).contains("several functions (a, b)"));
        assert!(message(refused("a", "x", &both)).contains("'x' is not a number"));
        assert!(message(refused("a", "1", &both)).contains("static constexpr uint32_t parameters"));
        let broken = "#include <inlane.h>\n\nstruct a { INLANE inlane::verdict packet(inlane::packet &p) {\n\
                      return p.size(); } };\nINLANE_FUNCTION(a)\n";
        let text = message(refused("a", "", broken));
        assert!(text.contains("mine.cu:4:") && text.contains("size"), "names the user's line: {text}");
        let neither = "#include <inlane.h>\nstruct a { uint64_t x; };\nINLANE_FUNCTION(a)\n";
        assert!(message(refused("a", "", neither)).contains("the function needs"));
        let missing = PacketFunction::parse("/nowhere/x.cu:y").expect_err("no such file");
        assert!(missing.to_string().contains("/nowhere/x.cu"));
    });
}

#[test]
fn a_missing_compiler_is_an_environment_error() {
    with_cache(|_| {
        // SAFETY: as in `with_cache`.
        unsafe { std::env::set_var("CXX", "/nowhere/c++") };
        let function = PacketFunction::parse(&example("sizes.cu")).expect("nothing is compiled yet");
        let error = function.instance().err().expect("no compiler");
        // SAFETY: as in `with_cache`.
        unsafe { std::env::remove_var("CXX") };
        assert_eq!(error.class(), inlane_core::error::Class::Environment);
        assert!(error.to_string().contains("apt-get install g++"), "{error}");
    });
}
