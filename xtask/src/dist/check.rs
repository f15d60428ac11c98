//! Uses the built files as a new user would: install, start, take a lock, upgrade with a lock held,
//! uninstall.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{call, create, file_name, target, write};

/// Checks the files for the platform of this machine.
pub(super) fn run(root: &Path, dist: &Path, version: &str) -> Result<(), String> {
    let place = target().join("dist-check");
    let _ = fs::remove_dir_all(&place);
    create(&place)?;
    call(
        Command::new("sha256sum")
            .args(["--check", "--quiet", "SHA256SUMS"])
            .current_dir(dist),
    )?;
    let architecture = std::env::consts::ARCH;
    let archive = format!("tenure-{version}-{architecture}-unknown-linux-musl");
    eprintln!("xtask: checking {archive}.tar.gz");
    extract(&dist.join(format!("{archive}.tar.gz")), &place)?;
    let unpacked = place.join(&archive);
    for name in [
        "share/man/man1/tenure-run.1",
        "share/bash-completion/completions/tenure",
        "lib/systemd/system/tenure.service",
        "etc/tenure/tenure.toml",
    ] {
        if !unpacked.join(name).exists() {
            return Err(format!("{archive}.tar.gz has no {name}"));
        }
    }
    let fresh = unpacked.join("bin/tenure");
    use_it(&fresh, &place.join("archive"), version, || {
        Command::new(&fresh)
    })?;

    let debian = if architecture == "aarch64" {
        "arm64"
    } else {
        "amd64"
    };
    let package = dist.join(format!("tenure_{version}-1_{debian}.deb"));
    eprintln!("xtask: checking {}", file_name(&package));
    let system = place.join("system");
    for directory in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "etc"] {
        create(&system.join(directory))?;
    }
    write(&system.join("var/lib/dpkg/status"), "")?;
    write(&system.join("var/lib/dpkg/available"), "")?;
    let dpkg = || {
        let mut command = Command::new("dpkg");
        command
            .arg(format!("--root={}", system.display()))
            // There is no shell in this root: the scripts run outside.
            .arg("--force-script-chrootless");
        command
    };
    call(dpkg().arg("--install").arg(&package))?;
    let installed = system.join("usr/bin/tenure");
    use_it(&installed, &place.join("package"), version, || {
        Command::new(&installed)
    })?;
    call(dpkg().args(["--remove", "tenure"]))?;
    if installed.exists() {
        return Err("the package leaves its binary behind".to_owned());
    }

    let image = dist.join(format!("tenure-{version}-image-{debian}.tar"));
    eprintln!("xtask: checking {}", file_name(&image));
    let image = Image::unpack(&image, &place.join("image"))?;
    // As in a container: this root and nothing else, with the user and the environment of the image.
    // Its data directory has another name inside.
    use_it(
        Path::new("/usr/bin/tenure"),
        Path::new("/data"),
        version,
        || {
            let mut command = Command::new("chroot");
            command
                .arg(format!("--userspec={}", image.user))
                .arg(&image.root)
                .arg("/usr/bin/tenure")
                .env_clear()
                .envs(image.environment.iter().cloned())
                // `chroot` itself is outside.
                .env("PATH", std::env::var_os("PATH").unwrap_or_default());
            command
        },
    )?;
    upgrade(root, &fresh, &place.join("upgrade"))
}

/// The unpacked layers of an image, and how it wants to be started.
struct Image {
    root: PathBuf,
    user: String,
    environment: Vec<(String, String)>,
}

impl Image {
    fn unpack(archive: &Path, place: &Path) -> Result<Image, String> {
        let (outer, root) = (place.join("archive"), place.join("root"));
        create(&outer)?;
        create(&root)?;
        extract(archive, &outer)?;
        let read = |name: &str| -> Result<Value, String> {
            let text = fs::read(outer.join(name)).map_err(|error| format!("{name}: {error}"))?;
            serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))
        };
        let manifest = read("manifest.json")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for layer in manifest[0]["Layers"].as_array().into_iter().flatten() {
            extract(&outer.join(text(layer)), &root)?;
        }
        let config = read(&text(&manifest[0]["Config"]))?;
        let config = &config["config"];
        if config["Healthcheck"]["Test"] != json!(["CMD", "tenure", "--health-check"]) {
            return Err("the image has no health check".to_owned());
        }
        let variables = config["Env"].as_array().into_iter().flatten();
        Ok(Image {
            root,
            user: text(&config["User"]),
            environment: variables
                .filter_map(|pair| {
                    let (name, value) = pair.as_str()?.split_once('=')?;
                    Some((name.to_owned(), value.to_owned()))
                })
                .collect(),
        })
    }
}

fn extract(archive: &Path, place: &Path) -> Result<(), String> {
    call(
        Command::new("tar")
            .args(["--extract", "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(place),
    )
}

/// A daemon that ends with its check.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(command: &mut Command, data: &Path) -> Result<Running, String> {
        let mut child = command
            .arg("serve")
            .env("TENURE_DATA_DIR", data)
            .env("TENURE_LISTEN", "127.0.0.1:0")
            .env("TENURE_WEB_LISTEN", "127.0.0.1:0")
            .env("TENURE_H3_LISTEN", "127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let lines = BufReader::new(child.stderr.take().ok_or("the daemon has no output")?);
        let mut said = String::new();
        for line in lines.lines().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once("ready, grpc ") {
                let address = rest.split(',').next().unwrap_or(rest).to_owned();
                return Ok(Running { child, address });
            }
            said.push_str(&line);
            said.push('\n');
        }
        let _ = child.wait();
        Err(format!("the daemon does not start:\n{said}"))
    }

    fn url(&self) -> String {
        format!("tenure://{}", self.address)
    }

    fn stop(mut self) -> Result<(), String> {
        call(Command::new("kill").arg(self.child.id().to_string()))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the daemon ended with {status}"))
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks for the version, takes a lock of the daemon, stops it.
fn use_it(
    binary: &Path,
    data: &Path,
    version: &str,
    command: impl Fn() -> Command,
) -> Result<(), String> {
    let output = command()
        .arg("--version")
        .output()
        .map_err(|error| format!("{}: {error}", binary.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if said != format!("tenure {version}") {
        return Err(format!("{} says {said:?}", binary.display()));
    }
    let daemon = Running::start(&mut command(), data)?;
    // The image has no other program, so the command under the lock is tenure itself.
    call(
        command()
            .args(["run", "-w", "30s", "vol:/a", "--"])
            .arg(binary)
            .arg("--version")
            .env("TENURE_URL", daemon.url()),
    )?;
    daemon.stop()
}

/// Holds a lock over a change of the binary: the previous release, if its tag is there, or this one.
fn upgrade(root: &Path, fresh: &Path, place: &Path) -> Result<(), String> {
    let previous = std::env::var_os("TENURE_PREVIOUS").map(PathBuf::from);
    let earlier = previous.as_deref().unwrap_or(fresh);
    eprintln!(
        "xtask: upgrading from {} with a lock held",
        earlier.display()
    );
    create(place)?;
    let data = place.join("data");
    let daemon = Running::start(&mut Command::new(earlier), &data)?;
    let output = Command::new(fresh)
        .args(["lock", "--ttl", "10m", "vol:/held"])
        .env("TENURE_URL", daemon.url())
        .current_dir(root)
        .output()
        .map_err(|error| error.to_string())?;
    let hold = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    daemon.stop()?;
    let daemon = Running::start(&mut Command::new(fresh), &data)?;
    let tried = Command::new(fresh)
        .args(["try", "vol:/held"])
        .env("TENURE_URL", daemon.url())
        .output()
        .map_err(|error| error.to_string())?;
    if tried.status.code() != Some(75) {
        return Err(format!(
            "the lock {hold} was lost in the upgrade: {tried:?}"
        ));
    }
    daemon.stop()
}
