//! `cargo xtask book`: builds `docs/` with mdBook into `target/book`.

use std::path::Path;
use std::process::Command;

use crate::dist::call;
use crate::{cargo, target};

/// The pinned version of mdBook.
const MDBOOK: &str = "0.4.52";

pub(crate) fn run(root: &Path) -> Result<(), String> {
    let tools = target().join("tools").join(format!("mdbook-{MDBOOK}"));
    let program = tools.join("bin/mdbook");
    if !program.exists() {
        let (home, built) = (tools.display().to_string(), target().join("tools/build"));
        cargo(&[
            "install",
            "mdbook",
            "--version",
            MDBOOK,
            "--locked",
            // Without the parts that serve and watch.
            "--no-default-features",
            "--debug",
            "--quiet",
            "--root",
            &home,
            "--target-dir",
            &built.display().to_string(),
        ])?;
    }
    call(Command::new(&program).arg("build").arg(root))?;
    let index = target().join("book/index.html");
    eprintln!("xtask: the book is {}", index.display());
    Ok(())
}
