//! How the command is linked.

/// At a fixed address, in release builds on Linux: 39,000 places need no relocation then, which was 0.8 to 1 ms of every start
/// (C7: a lock file is to cost little more than `flock`). Stack, heap and libraries are still at random addresses; who wants
/// the program to be, too, sets `TENURE_PIE=1`.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TENURE_PIE");
    let variable = |name| std::env::var(name).unwrap_or_default();
    let gnu_linux =
        variable("CARGO_CFG_TARGET_OS") == "linux" && variable("CARGO_CFG_TARGET_ENV") == "gnu";
    if gnu_linux && variable("PROFILE") == "release" && variable("TENURE_PIE") != "1" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
