//! A real PostgreSQL server of the Debian package, on a port of its own. It ends with this process.

use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tenure::EngineAdmin;
use tenure_files::internal::block_on;

/// Starts a server and waits for the end of its standard input, which is the end of its parent.
const START: &str = r#"
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
dir=$(mktemp -d)
as=
if [ "$(id -u)" = 0 ]; then
    chown postgres "$dir"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
cd "$dir"
$as "$bin/initdb" -D "$dir/data" -A trust -U postgres --no-sync >"$dir/initdb.log" 2>&1
$as "$bin/postgres" -D "$dir/data" -p "$PORT" -k "$dir" -c listen_addresses=127.0.0.1 \
    -c max_connections=300 $SETTINGS >"$dir/server.log" 2>&1 &
server=$!
read -r _ || true
kill -QUIT "$server"
wait "$server" || true
rm -rf "$dir"
"#;

/// A running server with the tables of Tenure.
pub(crate) struct Postgres {
    /// `postgres://…/postgres`, without a path.
    pub(crate) address: String,
    /// Its standard input ends with this process.
    _server: Child,
}

impl Postgres {
    /// Starts a server. Nothing is synced to disk: no test cuts the power.
    pub(crate) fn start() -> Postgres {
        install();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let server = Command::new("sh")
            .args(["-c", START])
            .env("PORT", port.to_string())
            .env("SETTINGS", "-c fsync=off")
            .stdin(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let address = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        let admin = EngineAdmin::new(&address).unwrap();
        let began = Instant::now();
        // The server has no other way to say that it accepts connections.
        while let Err(error) = block_on(admin.prepare()) {
            assert!(began.elapsed() < Duration::from_secs(120), "{error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Postgres {
            address,
            _server: server,
        }
    }
}

/// Installs the package, if it is missing.
fn install() {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _one = INSTALLING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let is_there = || {
        let mut found = String::new();
        let mut list = Command::new("sh")
            .args(["-c", "ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _ = list.stdout.take().unwrap().read_to_string(&mut found);
        list.wait().unwrap().success() && !found.is_empty()
    };
    if !is_there() {
        for args in [&["update", "-q"][..], &["install", "-y", "postgresql"][..]] {
            let _ = Command::new("apt-get")
                .args(args)
                .env("DEBIAN_FRONTEND", "noninteractive")
                .stdout(Stdio::null())
                .status();
        }
    }
    assert!(
        is_there(),
        "postgresql is needed for this test: apt-get install postgresql (as root)"
    );
}
