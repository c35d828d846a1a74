//! The command line as users meet it: each file of `cmd/` is a session, with its output and exit status. To take over
//! what changed on purpose: `TRYCMD=overwrite cargo test -p inlane --test command_line`.

#[test]
fn sessions() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
