//! Linker options of the command.

/// Links release builds on Linux at a fixed address: this avoids 39,000 relocations, which took 0.8
/// to 1 ms of every start. C7 (fast start): a lock file may cost little more than `flock`.
///
/// Stack, heap and libraries keep random addresses. `TENURE_PIE=1` builds a position-independent
/// executable.
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
