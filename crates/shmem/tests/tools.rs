//! Runs oshcc and oshrun with a compiler and an `inlane` that print their arguments.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Lets one test run at a time. If a test starts a program, the program inherits the open files of this
/// process for a moment. A script that another test is writing would then be open for writing, so it could
/// not be executed.
static ONE_TEST: Mutex<()> = Mutex::new(());

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/openshmem");
    for name in ["oshcc", "oshc++", "oshcxx", "oshCC", "oshrun"] {
        std::fs::copy(tools.join(name), folder.path().join(name)).unwrap();
    }
    let inlane = folder.path().join("inlane");
    std::fs::write(&inlane, "#!/bin/sh\nprintf '%s\\n' \"$*\"\n").unwrap();
    assert!(Command::new("chmod").arg("755").arg(&inlane).status().unwrap().success());
    folder
}

fn oshrun(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(folder.join("oshrun")).args(arguments).output().unwrap()
}

#[test]
fn oshrun_starts_the_job() {
    let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder();
    for (arguments, expected) in [
        (&["-np", "4", "./a.out", "-np", "7"][..], "ntb run -n 4 -- ./a.out -np 7\n"),
        (&["-n", "2", "./a.out"], "ntb run -n 2 -- ./a.out\n"),
        (&["-n", "2", "--heap", "1G", "--", "a"], "ntb run -n 2 --heap 1G -- a\n"),
        (&["--faults=torn", "-n", "2", "a"], "ntb run -n 2 --faults=torn -- a\n"),
    ] {
        let output = oshrun(folder.path(), arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{arguments:?}");
    }
    for arguments in [&["a"][..], &["-n", "0", "a"], &["-n", "2"], &["-q", "-n", "2", "a"]] {
        let output = oshrun(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("oshrun: "), "{arguments:?}");
    }
}

#[test]
fn oshcc_adds_the_librarys_flags() {
    let _alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder();
    let run_with = |tool: &str, arguments: &[&str], compiler: &str| {
        let prefix = tempfile::tempdir().unwrap();
        let (bin, include) = (prefix.path().join("bin"), prefix.path().join("include"));
        for path in [&bin, &include, &prefix.path().join("lib")] {
            std::fs::create_dir(path).unwrap();
        }
        std::fs::write(include.join("shmem.h"), "").unwrap();
        std::fs::copy(folder.path().join(tool), bin.join(tool)).unwrap();
        for usual in ["cc", "c++"] {
            let compiler = bin.join(usual);
            std::fs::write(&compiler, format!("#!/bin/sh\necho usual {usual}\n")).unwrap();
            std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new("timeout");
        command.arg("60").arg(bin.join(tool)).args(arguments).env("CC", compiler).env("CXX", compiler);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        // Remove the variable OSHCC_IS_RUNNING, because oshcc ignores CC while it is set. oshcc sets it for
        // its own child processes, and the tests may run in one.
        let output = command.env("PATH", path).env_remove("OSHCC_IS_RUNNING").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let prefix = prefix.path().canonicalize().unwrap();
        String::from_utf8(output.stdout).unwrap().replace(prefix.to_str().unwrap(), "PREFIX")
    };
    let run = |tool: &str, arguments: &[&str]| {
        run_with(tool, arguments, if tool == "oshcc" { "echo C" } else { "echo C++" })
    };
    let link = "-LPREFIX/lib -Wl,-rpath,PREFIX/lib -linlane_shmem -lm\n";
    assert_eq!(run("oshcc", &["a.c", "-o", "a"]), format!("C -IPREFIX/include a.c -o a {link}"));
    for tool in ["oshc++", "oshcxx", "oshCC"] {
        assert_eq!(run(tool, &["a.cc"]), format!("C++ -IPREFIX/include a.cc {link}"));
    }
    assert_eq!(run("oshcc", &["-c", "a.c"]).trim_end(), "C -IPREFIX/include -c a.c");
    assert_eq!(run("oshcc", &["-show", "a.c"]), format!("echo C -IPREFIX/include a.c {link}"));
    // A build system may set CC to oshcc itself. oshcc must then run the usual compiler, because running CC
    // would never end.
    assert_eq!(run_with("oshcc", &["-show", "a.c"], "oshcc"), format!("cc -IPREFIX/include a.c {link}"));
    assert_eq!(run_with("oshc++", &["-show", "a.cc"], "oshc++"), format!("c++ -IPREFIX/include a.cc {link}"));
    assert_eq!(run_with("oshcc", &["a.c"], "env oshcc"), "usual cc\n");
    assert_eq!(run_with("oshc++", &["a.cc"], "env oshc++"), "usual c++\n");
    assert_eq!(run("oshcc", &["--showme:compile"]), "-IPREFIX/include\n");
    assert_eq!(run("oshc++", &["--showme:link"]), link);
}
