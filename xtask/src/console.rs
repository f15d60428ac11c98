//! The assets of the web console: built from `console/` with npm, and committed, so that a build with
//! cargo needs no npm.

use std::path::Path;
use std::process::Command;

use crate::{root, target};

/// Builds the assets that the daemon embeds.
pub(crate) fn build() -> Result<(), String> {
    build_into(&root().join("crates/tenure-server/assets/console"))
}

/// Fails if the committed assets are not those of the source.
pub(crate) fn check() -> Result<(), String> {
    let built = target().join("console");
    build_into(&built)?;
    let committed = root().join("crates/tenure-server/assets/console");
    for name in ["index.html", "app.js", "app.css", "icon.svg"] {
        let read = |directory: &Path| {
            std::fs::read(directory.join(name)).map_err(|error| format!("{name}: {error}"))
        };
        if read(&built)? != read(&committed)? {
            return Err(format!(
                "the console's {name} is not what console/ builds: run cargo xtask console"
            ));
        }
    }
    Ok(())
}

fn build_into(out: &Path) -> Result<(), String> {
    run(Command::new("npm").args(["ci", "--silent", "--no-fund", "--no-audit"]))?;
    run(Command::new("npm").args(["run", "--silent", "types"]))?;
    run(Command::new("node").arg("build.mjs").arg(out))
}

fn run(command: &mut Command) -> Result<(), String> {
    eprintln!("$ {command:?}");
    let status = command
        .current_dir(root().join("console"))
        .status()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?} failed")),
    }
}
