//! Compresses the assets of the console: the daemon serves them as they are embedded.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Read at run time, not with `env!`: worktrees may share a target directory.
    let assets = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("assets/console");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for name in ["index.html", "app.js", "app.css", "icon.svg"] {
        let file = assets.join(name);
        println!("cargo::rerun-if-changed={}", file.display());
        let mut compressed = GzEncoder::new(Vec::new(), Compression::best());
        compressed.write_all(&fs::read(file)?)?;
        fs::write(out.join(format!("{name}.gz")), compressed.finish()?)?;
    }
    Ok(())
}
