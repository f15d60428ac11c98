//! `cargo xtask dist`: the files of a release in `target/dist`: static binaries with completions and
//! manual pages as archives, Debian packages, images, a bill of materials, checksums.
//!
//! `--check` then uses what was built as a new user would: from the archive, from the package, and from the
//! image, unpacked in a chroot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::{cargo_with, target};

mod check;

/// A platform that is shipped.
struct Platform {
    target: &'static str,
    /// Debian's name of the architecture.
    debian: &'static str,
    /// The Debian package with the C compiler, and the compiler.
    compiler: (&'static str, &'static str),
}

const PLATFORMS: &[Platform] = &[
    Platform {
        target: "x86_64-unknown-linux-musl",
        debian: "amd64",
        compiler: ("musl-tools", "musl-gcc"),
    },
    Platform {
        target: "aarch64-unknown-linux-musl",
        debian: "arm64",
        compiler: ("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc"),
    },
];

/// The largest binary that is shipped, in bytes.
const LARGEST: u64 = 30 << 20;

/// Builds the files of a release. `--target T` builds one platform, `--check` tries what was built.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<(), String> {
    let mut platforms: Vec<&Platform> = PLATFORMS.iter().collect();
    let mut check = false;
    let mut given = None;
    let mut words = options;
    while let [word, rest @ ..] = words {
        words = match (*word, rest) {
            ("--check", _) => {
                check = true;
                rest
            }
            ("--target", [name, rest @ ..]) => {
                platforms.retain(|platform| platform.target == *name);
                if platforms.is_empty() {
                    let known: Vec<&str> = PLATFORMS.iter().map(|one| one.target).collect();
                    return Err(format!("no such target; there are {}", known.join(", ")));
                }
                rest
            }
            // Packages a binary that was built elsewhere, for the one platform that `--target` names.
            ("--binary", [file, rest @ ..]) => {
                given = Some(PathBuf::from(file));
                rest
            }
            _ => {
                let usage = "usage: cargo xtask dist [--target TARGET [--binary FILE]] [--check]";
                return Err(usage.to_owned());
            }
        };
    }
    if given.is_some() && platforms.len() != 1 {
        return Err("--binary needs --target: it says what the file was built for".to_owned());
    }
    let metadata = metadata(root)?;
    let version = version(&metadata)?;
    let dist = target().join("dist");
    let _ = fs::remove_dir_all(&dist);
    create(&dist)?;
    for platform in &platforms {
        let binary = match &given {
            Some(file) => file.clone(),
            None => build(platform)?,
        };
        let stage = stage(root, &dist, platform, &version, &binary)?;
        archive(&dist, &stage)?;
        package(root, &dist, platform, &version, &stage)?;
        image(root, &dist, platform, &version, &binary)?;
    }
    write(
        &dist.join(format!("tenure-{version}.cdx.json")),
        &(bill_of_materials(&metadata, &version)?.to_string() + "\n"),
    )?;
    checksums(&dist)?;
    if check {
        check::run(root, &dist, &version)?;
    }
    eprintln!("xtask: the release is in {}", dist.display());
    Ok(())
}

pub(crate) fn metadata(root: &Path) -> Result<Value, String> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Returns the version of the binary.
pub(crate) fn version(metadata: &Value) -> Result<String, String> {
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let tenure = packages.iter().find(|one| one["name"] == "tenure-cli");
    let version = tenure.and_then(|one| one["version"].as_str());
    Ok(version.ok_or("tenure-cli has no version")?.to_owned())
}

fn build(platform: &Platform) -> Result<PathBuf, String> {
    let Platform {
        target: name,
        compiler: (package, compiler),
        ..
    } = platform;
    install(package, compiler)?;
    call(Command::new("rustup").args(["target", "add", name]))?;
    let variable = name.replace('-', "_");
    let mut environment = vec![(format!("CC_{variable}"), (*compiler).to_owned())];
    if !name.starts_with(std::env::consts::ARCH) {
        let linker = format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase());
        environment.push((linker, (*compiler).to_owned()));
        // The compiler is made for another C library: no function that only that one has.
        let flags = "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=0".to_owned();
        environment.push((format!("CFLAGS_{variable}"), flags));
    }
    let environment: Vec<(&str, &str)> = environment
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let words = [
        "build",
        "--release",
        "--locked",
        "--package",
        "tenure-cli",
        "--target",
        name,
    ];
    cargo_with(&words, &environment)?;
    let binary = target().join(name).join("release/tenure");
    let bytes = fs::metadata(&binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    if bytes.len() > LARGEST {
        return Err(format!(
            "{} has {} bytes, more than {LARGEST}",
            binary.display(),
            bytes.len()
        ));
    }
    Ok(binary)
}

/// Makes the directory that is archived: binary, completions, manual pages, files of `deploy`.
fn stage(
    root: &Path,
    dist: &Path,
    platform: &Platform,
    version: &str,
    binary: &Path,
) -> Result<PathBuf, String> {
    let stage = dist.join(format!("tenure-{version}-{}", platform.target));
    copy(binary, &stage.join("bin/tenure"), 0o755)?;
    // Completions and manual pages are the same on every platform; a foreign binary cannot be asked.
    let built = PLATFORMS
        .iter()
        .map(|one| target().join(one.target).join("release/tenure"));
    let asked = std::iter::once(binary.to_owned())
        .chain(built)
        .find(|file| file.exists() && runs_here(file))
        .ok_or("build the platform of this machine first: it writes the manual pages")?;
    let manuals = stage.join("share/man/man1");
    create(&manuals)?;
    call(Command::new(&asked).arg("manual").arg(&manuals))?;
    for (shell, name) in [
        ("bash", "bash-completion/completions/tenure"),
        ("zsh", "zsh/vendor-completions/_tenure"),
        ("fish", "fish/vendor_completions.d/tenure.fish"),
    ] {
        let output = Command::new(&asked)
            .args(["completions", shell])
            .output()
            .map_err(|error| format!("{}: {error}", asked.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        write(&stage.join("share").join(name), &text)?;
    }
    for (from, to) in [
        (
            "deploy/systemd/tenure.service",
            "lib/systemd/system/tenure.service",
        ),
        (
            "deploy/systemd/tenure.socket",
            "lib/systemd/system/tenure.socket",
        ),
        ("deploy/logrotate/tenure", "etc/logrotate.d/tenure"),
        ("deploy/tenure.example.toml", "etc/tenure/tenure.toml"),
        ("README.md", "share/doc/tenure/README.md"),
        ("CHANGELOG.md", "share/doc/tenure/CHANGELOG.md"),
        ("LICENSE-APACHE", "share/doc/tenure/LICENSE-APACHE"),
        ("LICENSE-MIT", "share/doc/tenure/LICENSE-MIT"),
    ] {
        let mode = if to.ends_with("tenure.toml") {
            0o600
        } else {
            0o644
        };
        copy(&root.join(from), &stage.join(to), mode)?;
    }
    Ok(stage)
}

fn runs_here(binary: &Path) -> bool {
    let output = Command::new(binary).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// Archives a directory, with the same bytes each time.
fn archive(dist: &Path, stage: &Path) -> Result<(), String> {
    let name = file_name(stage);
    call(
        Command::new("tar")
            .args(["--create", "--gzip", "--sort=name", "--mtime=@0"])
            .args(["--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--file={name}.tar.gz"))
            .arg(&name)
            .current_dir(dist),
    )
}

/// Makes the Debian package, with the packager of Debian.
fn package(
    root: &Path,
    dist: &Path,
    platform: &Platform,
    version: &str,
    stage: &Path,
) -> Result<(), String> {
    let tree = dist.join(format!("package-{}", platform.debian));
    for (from, to) in [
        ("bin", "usr/bin"),
        ("share", "usr/share"),
        ("lib", "lib"),
        ("etc", "etc"),
    ] {
        let to = tree.join(to);
        create(to.parent().unwrap_or(&tree))?;
        call(Command::new("cp").arg("-a").arg(stage.join(from)).arg(&to))?;
    }
    let copyright =
        fs::read_to_string(root.join("LICENSE-MIT")).map_err(|error| error.to_string())?;
    write(&tree.join("usr/share/doc/tenure/copyright"), &copyright)?;
    let control = format!(
        "Package: tenure\nVersion: {version}-1\nArchitecture: {}\nSection: admin\nPriority: optional\n\
         Maintainer: The Tenure developers\n\
         Description: One lock for everything that is shared: a file, a bucket, a fleet\n \
         The command holds a lock while a program runs. The daemon serves locks to many machines.\n",
        platform.debian
    );
    write(&tree.join("DEBIAN/control"), &control)?;
    write(
        &tree.join("DEBIAN/conffiles"),
        "/etc/tenure/tenure.toml\n/etc/logrotate.d/tenure\n",
    )?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(
            &root.join("deploy/debian").join(script),
            &tree.join("DEBIAN").join(script),
            0o755,
        )?;
    }
    let name = format!("tenure_{version}-1_{}.deb", platform.debian);
    call(
        Command::new("dpkg-deb")
            .args(["--build", "--root-owner-group", "-Zxz"])
            .arg(&tree)
            .arg(dist.join(name))
            // The time stamps of the package are those of the release, not of this machine.
            .env("SOURCE_DATE_EPOCH", "0"),
    )?;
    fs::remove_dir_all(&tree).map_err(|error| error.to_string())
}

/// Builds the image from the binary, as an archive that `docker load` reads. Needs no container engine.
fn image(
    root: &Path,
    dist: &Path,
    platform: &Platform,
    version: &str,
    binary: &Path,
) -> Result<(), String> {
    let tree = dist.join(format!("image-{}", platform.debian));
    copy(binary, &tree.join("usr/bin/tenure"), 0o755)?;
    create(&tree.join("data"))?;
    create(&tree.join("tmp"))?;
    set_mode(&tree.join("tmp"), 0o1777)?;
    call(
        Command::new("chown")
            .arg("65532:65532")
            .arg(tree.join("data")),
    )?;
    install("buildah", "buildah")?;
    let store = target().join("buildah");
    let buildah = || {
        let mut command = Command::new("buildah");
        // Storage of its own, without a feature of the kernel or of a container engine.
        command
            .args(["--storage-driver", "vfs", "--root"])
            .arg(store.join("root"))
            .arg("--runroot")
            .arg(store.join("run"));
        command
    };
    let name = format!("tenure:{version}");
    call(
        buildah()
            .args(["build", "--isolation", "chroot", "--format", "docker"])
            .args(["--timestamp", "0", "--arch", platform.debian])
            .arg(format!("--build-arg=VERSION={version}"))
            .args(["--tag", &name, "--file"])
            .arg(root.join("deploy/Dockerfile.binary"))
            .arg(&tree),
    )?;
    let archive = dist.join(format!("tenure-{version}-image-{}.tar", platform.debian));
    call(
        buildah()
            .args(["push", &name])
            .arg(format!("docker-archive:{}:{name}", archive.display())),
    )?;
    for left in [&tree, &store] {
        fs::remove_dir_all(left).map_err(|error| format!("{}: {error}", left.display()))?;
    }
    Ok(())
}

/// Returns a bill of materials (CycloneDX 1.5) of everything that the lock file names.
fn bill_of_materials(metadata: &Value, version: &str) -> Result<Value, String> {
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let components: Vec<Value> = packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .map(|package| {
            let (name, version) = (&package["name"], &package["version"]);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let purl = format!("pkg:cargo/{}@{}", text(name), text(version));
            // Older crates separate their licences with a slash.
            let licence = text(&package["license"]).replace('/', " OR ");
            json!({
                "type": "library",
                "bom-ref": purl,
                "name": name,
                "version": version,
                "purl": purl,
                "licenses": [{ "expression": licence }],
            })
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": format!("pkg:cargo/tenure-cli@{version}"),
            "name": "tenure",
            "version": version,
            "licenses": [{ "expression": "Apache-2.0 OR MIT" }],
        }},
        "components": components,
    }))
}

/// Writes the checksums of all files of the release.
fn checksums(dist: &Path) -> Result<(), String> {
    let script = "sha256sum -- *.tar *.tar.gz *.deb *.cdx.json > SHA256SUMS";
    call(Command::new("sh").args(["-c", script]).current_dir(dist))
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Installs a Debian package if its program is missing.
fn install(package: &str, program: &str) -> Result<(), String> {
    let found = Command::new("which").arg(program).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends", package]);
    call(install.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Runs a command that must succeed.
pub(crate) fn call(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot start {command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    ))
}

fn create(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    create(path.parent().unwrap_or(path))?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    create(to.parent().unwrap_or(to))?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    set_mode(to, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(|error| format!("{}: {error}", path.display()))
}
