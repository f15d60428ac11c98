//! `run` and related commands on the daemon: leases, the queue, release requests, trees, permits,
//! policies.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails where something is not as it must be"
)]

#[path = "run/pty.rs"]
mod pty;
#[path = "run/shell.rs"]
mod shell;
mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use pty::Terminal;
use serde_json::Value;
use shell::{Holder, RunFixture, TENURE, eventually};
use support::Daemon;
use support::foreign::Moto;

static DAEMON: OnceLock<(Daemon, tempfile::TempDir, String)> = OnceLock::new();

/// One daemon for all tests of this program; each uses paths of its own. It ends with us.
fn url() -> &'static str {
    let (_, _, url) = DAEMON.get_or_init(|| {
        let data = tempfile::tempdir().unwrap();
        let daemon = Daemon::start_until_we_end(data.path());
        let url = format!("tenure://{}", daemon.grpc);
        (daemon, data, url)
    });
    url
}

fn run(place: &RunFixture, arguments: &[&str]) -> Command {
    let mut command = place.run(arguments);
    command.env("TENURE_URL", url());
    command
}

fn code(place: &RunFixture, arguments: &[&str]) -> Option<i32> {
    run(place, arguments)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .code()
}

fn tenure(place: &RunFixture, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(TENURE)
        .args(arguments)
        .current_dir(place.path())
        .env("TENURE_URL", url())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

fn json(place: &RunFixture, arguments: &[&str]) -> Value {
    let (_, text) = tenure(place, arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn hold(place: &RunFixture, arguments: &[&str]) -> Holder {
    let mut all = arguments.to_vec();
    all.extend(["--", "sh", "-c", "echo held; exec sleep 1000"]);
    Holder::start(run(place, &all))
}

/// C1 (options of run), C2 (exit codes), C3: held is 75, timed out is 124; the child gets fence,
/// owner, mode and URL.
#[test]
fn exclusive_and_the_environment() {
    let place = RunFixture::new();
    let holder = hold(&place, &["--purpose", "reindex", "a:/x"]);
    assert_eq!(code(&place, &["-n", "a:/x", "--", "true"]), Some(75));
    assert_eq!(
        code(&place, &["-w", "100ms", "a:/x", "--", "true"]),
        Some(124)
    );
    assert_eq!(
        code(&place, &["-n", "-E", "9", "a:/x/below", "--", "true"]),
        Some(9)
    );
    holder.signal("TERM");
    assert_eq!(holder.end().code, Some(143));
    let script = "echo $TENURE_WHERE $TENURE_MODE $TENURE_FENCE; test -n \"$TENURE_OWNER\" && test -z \"$TENURE_FD\" && echo $TENURE_URL";
    let output = run(&place, &["-n", "a:/x", "--", "sh", "-c", script])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(words[..2], ["a:/x", "exclusive"]);
    assert!(words[2].parse::<u64>().unwrap() > 0);
    assert_eq!(words[3], url());
}

/// C1, E6: shared holders share; a shared tree excludes writers below it.
#[test]
fn shared_and_trees() {
    let place = RunFixture::new();
    let holder = hold(&place, &["-s", "s:/x"]);
    assert_eq!(code(&place, &["-n", "-s", "s:/x", "--", "true"]), Some(0));
    assert_eq!(code(&place, &["-n", "s:/x", "--", "true"]), Some(75));
    let tree = hold(&place, &["-s", "--tree", "s:/tree"]);
    assert_eq!(code(&place, &["-n", "s:/tree/a/b", "--", "true"]), Some(75));
    assert_eq!(
        code(&place, &["-n", "-s", "s:/tree/a/b", "--", "true"]),
        Some(0)
    );
    for holder in [holder, tree] {
        holder.signal("TERM");
        holder.end();
    }
}

/// C1: permits of a semaphore namespace; `policy` sets, shows, lists and removes.
#[test]
fn permits_and_policies() {
    let place = RunFixture::new();
    assert_eq!(
        tenure(&place, &["policy", "set", "pool:/p", "semaphore"]).0,
        Some(0)
    );
    assert_eq!(
        json(&place, &["policy", "get", "--json", "pool:/p"])["algorithm"],
        "semaphore"
    );
    let (_, list) = tenure(&place, &["policy", "ls"]);
    assert!(list.contains("pool:/p  semaphore"), "{list}");
    let holders = [
        hold(&place, &["--permits", "2", "pool:/p/x"]),
        hold(&place, &["--permits", "2", "pool:/p/x"]),
    ];
    assert_eq!(
        code(&place, &["-n", "--permits", "2", "pool:/p/x", "--", "true"]),
        Some(75)
    );
    for holder in holders {
        holder.signal("TERM");
        holder.end();
    }
    assert_eq!(
        code(&place, &["-n", "--permits", "2", "pool:/p/x", "--", "true"]),
        Some(0)
    );
    assert_eq!(tenure(&place, &["policy", "rm", "pool:/p"]).0, Some(0));
    assert_eq!(
        json(&place, &["policy", "get", "--json", "pool:/p"])["explicit"],
        false
    );
    // In other namespaces one of two permits would be an exclusive lock: refused, and nothing is
    // left behind.
    let (code, said) = tenure(
        &place,
        &["run", "--permits", "2", "pool:/q/x", "--", "true"],
    );
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no semaphore"), "{said}");
    assert_eq!(tenure(&place, &["try", "pool:/q/x"]).0, Some(0));
    assert_eq!(
        tenure(&place, &["policy", "set", "pool:/p", "nonsense"]).0,
        Some(2)
    );
}

/// C10 (changes to foreign locks): a change of a policy ends holds, so it names them and needs
/// --force without a terminal.
#[test]
fn a_policy_is_not_changed_under_holders_without_force() {
    let place = RunFixture::new();
    let holder = hold(&place, &["--purpose", "count", "pc:/acme/x"]);
    let mut waiter = run(&place, &["pc:/acme/x", "--", "true"]);
    let mut waiter = waiter.stderr(Stdio::null()).spawn().unwrap();
    eventually("it waits", || {
        json(&place, &["why", "--json", "pc:/acme/x"])["waiters"]
            .as_array()
            .is_some_and(|waiters| waiters.len() == 1)
    });
    for change in [
        &["policy", "set", "pc:/acme", "semaphore"][..],
        &["policy", "rm", "pc:/acme"],
    ] {
        let (code, said) = tenure(&place, change);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("1 hold and 1 waiter in pc:/acme"), "{said}");
        assert!(
            said.contains("pc:/acme/x") && said.contains("--force"),
            "{said}"
        );
    }
    assert_eq!(code(&place, &["-n", "pc:/acme/x", "--", "true"]), Some(75));
    let (changed, said) = tenure(
        &place,
        &["policy", "set", "--force", "pc:/acme", "point_write"],
    );
    assert_eq!(changed, Some(0), "{said}");
    assert!(said.contains("ended 1 hold and 1 waiter"), "{said}");
    assert_eq!(holder.end().code, Some(120));
    let _ = waiter.kill();
    waiter.wait().unwrap();
}

/// C4 (keeper and process group), C8: a nested run of a lock that the outer run holds is refused at
/// once; shared runs nest, and other locks do.
#[test]
fn a_nested_run_does_not_wait_for_itself() {
    let place = RunFixture::new();
    for (outer, inner, wanted) in [
        (&["ne:/a"][..], &["ne:/a"][..], 75),
        (&["ne:/a"], &["ne:/a/b"], 75),
        (&["ne:/a/b"], &["ne:/a"], 75),
        (&["-s", "ne:/a"], &["ne:/a"], 75),
        (&["-s", "ne:/a"], &["-s", "ne:/a"], 0),
        (&["ne:/a"], &["ne:/b"], 0),
        (&["ne:/a"], &["ne:/ab"], 0),
        (&["f"], &["./f"], 75),
        (&["f"], &["g"], 0),
    ] {
        let mut arguments = outer.to_vec();
        arguments.extend(["--", TENURE, "run"]);
        arguments.extend(inner);
        arguments.extend(["--", "true"]);
        let output = run(&place, &arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(wanted),
            "{outer:?} {inner:?}: {said}"
        );
        let refused = said.contains("already runs under that lock");
        assert_eq!(refused, wanted == 75, "{said}");
    }
}

/// C8: `why` leads with the deadlock, draws it, and names a way out; a long list is cut.
#[test]
fn why_calls_a_deadlock_by_its_name() {
    let place = RunFixture::new();
    url();
    let daemon = &DAEMON.get().unwrap().0;
    let acquire = |owner: &str, path: &str| {
        let request = serde_json::json!({
            "ownerId": owner, "ttlMs": 600_000, "queueTtlMs": 600_000,
            "requests": [{ "path": path }],
        });
        daemon.post("/v1/acquire", &request)
    };
    for (owner, path) in [
        ("dl-A", "dead:/x"),
        ("dl-B", "dead:/y"),
        ("dl-A", "dead:/y"),
        ("dl-B", "dead:/x"),
    ] {
        let (status, answer) = acquire(owner, path);
        assert_eq!(status, 200, "{answer}");
    }
    let (_, text) = tenure(&place, &["why", "dead:/x"]);
    assert!(text.starts_with("DEADLOCK at dead:/x"), "{text}");
    assert!(text.contains("┌─▶ dl-A holds dead:/x and waits"), "{text}");
    assert!(text.contains("└── dl-B holds dead:/y and waits"), "{text}");
    assert!(text.contains("tenure break --force --id"), "{text}");
    for number in 0..12 {
        acquire(&format!("queued-{number}"), "dead:/x");
    }
    let (_, text) = tenure(&place, &["why", "dead:/x"]);
    assert!(text.contains("and 8 more waiters"), "{text}");
    for owner in ["dl-A", "dl-B"] {
        let release = serde_json::json!({ "victimId": owner });
        daemon.post("/v1/forceRelease", &release);
    }
}

/// C1, C8: waiters are granted first come, first served, and show the holder.
#[test]
fn the_line_is_fair() {
    let place = RunFixture::new();
    let holder = hold(&place, &["--purpose", "first", "l:/x"]);
    let mut waiters = Vec::new();
    for number in 1..=3 {
        let script = format!("echo {number} >> order");
        let waiter = run(&place, &["l:/x", "--", "sh", "-c", &script])
            .stderr(Stdio::piped())
            .spawn();
        waiters.push(waiter.unwrap());
        eventually("it is in line", || {
            json(&place, &["why", "--json", "l:/x"])["waiters"]
                .as_array()
                .unwrap()
                .len()
                == number
        });
    }
    let mut line = String::new();
    let stderr = waiters[0].stderr.take().unwrap();
    let mut stderr = BufReader::new(stderr);
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting") && line.contains("first"), "{line}");
    assert!(line.contains("tenure ask l:/x"), "{line}");
    let (_, text) = tenure(&place, &["why", "l:/x"]);
    assert!(text.contains("3. in line"), "{text}");
    holder.signal("TERM");
    holder.end();
    for mut waiter in waiters {
        assert_eq!(waiter.wait().unwrap().code(), Some(0));
    }
    assert_eq!(
        fs::read_to_string(place.file("order")).unwrap(),
        "1\n2\n3\n"
    );
}

/// C1, C2: a release request is reported with `notify`, and ends the command with 121 with `term`.
#[test]
fn release_requests() {
    let place = RunFixture::new();
    let holder = hold(&place, &["--on-ask", "term", "r:/x"]);
    let (asked, text) = tenure(&place, &["ask", "--force", "--reason", "hotfix", "r:/x"]);
    assert_eq!(asked, Some(0), "{text}");
    assert_eq!(holder.end().code, Some(121));
    let mut holder = hold(&place, &["r:/y"]);
    let waiter = run(&place, &["--ask", "-w", "60s", "r:/y", "--", "true"]).spawn();
    holder.expect_error("asks for the lock");
    holder.signal("TERM");
    assert_eq!(
        holder.end().code,
        Some(143),
        "a request does not end the command"
    );
    assert_eq!(waiter.unwrap().wait().unwrap().code(), Some(0));
}

/// C16 (details of codes and break), C2: a broken hold stops its command with 120, and the id
/// protects the next holder.
#[test]
fn broken_holds() {
    let place = RunFixture::new();
    let holder = hold(&place, &["b:/x"]);
    let id = json(&place, &["why", "--json", "b:/x"])["holders"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        tenure(&place, &["break", "--force", "--id", "somebody@1", "b:/x"]).0,
        Some(125)
    );
    let (broken, text) = tenure(
        &place,
        &["break", "--force", "--id", &id, "--reason", "stuck", "b:/x"],
    );
    assert_eq!(broken, Some(0), "{text}");
    assert_eq!(holder.end().code, Some(120));
    assert_eq!(code(&place, &["-n", "b:/x", "--", "true"]), Some(0));
}

/// C13: a hold ends with its ttl, and is renewed and released by its text form.
#[test]
fn holds_live_by_their_ttl() {
    let place = RunFixture::new();
    let answer = json(&place, &["lock", "--json", "--ttl", "60s", "h:/x"]);
    assert_eq!(answer["ttl_ms"], 60_000);
    assert!(answer["fence"].as_u64().unwrap() > 0);
    let hold = answer["hold"].as_str().unwrap();
    assert_eq!(code(&place, &["-n", "h:/x", "--", "true"]), Some(75));
    assert_eq!(tenure(&place, &["renew", hold]).0, Some(0));
    assert_eq!(tenure(&place, &["unlock", hold]).0, Some(0));
    assert_eq!(code(&place, &["-n", "h:/x", "--", "true"]), Some(0));
    assert_ne!(tenure(&place, &["renew", hold]).0, Some(0));
    // Without a renewal it ends by itself.
    assert_eq!(
        tenure(&place, &["lock", "--ttl", "200ms", "h:/y"]).0,
        Some(0)
    );
    assert_eq!(code(&place, &["-w", "60s", "h:/y", "--", "true"]), Some(0));
}

/// `fence check` inside `run`: valid while held, not after the hold was broken.
#[test]
fn fences_are_checked() {
    let place = RunFixture::new();
    let script = format!(
        "{TENURE} fence check > /dev/null; echo $?; {TENURE} break --force f:/x > /dev/null; {TENURE} fence check > /dev/null; echo $?"
    );
    let output = run(
        &place,
        &["--on-lost", "notify", "f:/x", "--", "sh", "-c", &script],
    )
    .output()
    .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n120\n");
    assert_eq!(output.status.code(), Some(120));
}

/// Lists the locks of the daemon, below a path and all; locks of other trees are left out.
#[test]
fn ls_lists_the_daemon() {
    let place = RunFixture::new();
    let holder = hold(&place, &["--purpose", "reindex", "ls:/a/b"]);
    let below = json(&place, &["ls", "--json", "ls:/a"]);
    assert_eq!(below[0]["place"], "ls:/a/b");
    assert_eq!(below.as_array().unwrap().len(), 1);
    let (_, all) = tenure(&place, &["ls"]);
    assert!(all.contains("ls:/a/b"), "{all}");
    assert_eq!(
        json(&place, &["ls", "--json", "ls:/other"]),
        Value::Array(Vec::new())
    );
    holder.signal("TERM");
    holder.end();
}

/// A watch reports grants, waiters and releases in order.
#[test]
fn watch_tells_everything_in_order() {
    let place = RunFixture::new();
    let mut watch = Command::new(TENURE)
        .args(["watch", "--json", "w:/x"])
        .env("TENURE_URL", url())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> String {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["kind"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(), "present-end");
    let holder = hold(&place, &["w:/x"]);
    assert_eq!(next(), "granted");
    let waiter = run(&place, &["w:/x", "--", "true"]).spawn();
    assert_eq!(next(), "queued");
    holder.signal("TERM");
    holder.end();
    assert_eq!(next(), "released");
    assert_eq!(next(), "granted");
    assert_eq!(waiter.unwrap().wait().unwrap().code(), Some(0));
    // A waiter may confirm its grant by another request.
    let mut last = next();
    while last == "granted" {
        last = next();
    }
    assert_eq!(last, "released");
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// C6: several paths, reversed lists, a parent and its child, and another reach beside them.
#[test]
fn several_at_once() {
    let place = RunFixture::new();
    fs::write(place.file("n"), "0").unwrap();
    let script = "n=$(cat n); echo $((n + 1)) > n";
    let lists: [&[&str]; 3] = [
        &["m:/a", "m:/b", "./f"],
        &["./f", "m:/b", "m:/a"],
        &["m:/b", "m:/b/c", "./f"],
    ];
    let mut children = Vec::new();
    for list in lists.iter().cycle().take(12) {
        let mut arguments = list.to_vec();
        arguments.extend(["--", "sh", "-c", script]);
        children.push(run(&place, &arguments).spawn().unwrap());
    }
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(fs::read_to_string(place.file("n")).unwrap().trim(), "12");
}

/// C6: paths of one namespace are one step. Lists in any order run beside commands that lock the
/// whole tree; one after the other they would deadlock. All of them complete.
#[test]
fn several_beside_tree_locks() {
    let place = RunFixture::new();
    fs::write(place.file("n"), "0").unwrap();
    let script = "n=$(cat n); echo $((n + 1)) > n; test \"$TENURE_FENCE\" = \"${TENURE_FENCE_2-$TENURE_FENCE}\"";
    let lists: [&[&str]; 3] = [
        &["tree:/x/a", "tree:/x/b"],
        &["tree:/x/b", "tree:/x/a"],
        &["tree:/x"],
    ];
    let rounds = |list: &[&str]| {
        for _ in 0..12 {
            let mut arguments = vec!["-w", "60s"];
            arguments.extend(list);
            arguments.extend(["--", "sh", "-c", script]);
            assert_eq!(code(&place, &arguments), Some(0), "{list:?}");
        }
    };
    std::thread::scope(|scope| {
        for list in lists {
            scope.spawn(move || rounds(list));
        }
    });
    assert_eq!(fs::read_to_string(place.file("n")).unwrap().trim(), "36");
}

/// C6: a command that does not get all locks keeps none, not even for a lease: another one gets the
/// first at once.
#[test]
fn what_was_taken_is_given_back() {
    let place = RunFixture::new();
    let holder = hold(&place, &["back:/y/1"]);
    // Two namespaces: the first is taken before the second turns out to be held.
    let both = ["-n", "back:/x/1", "back:/y/1", "--", "true"];
    assert_eq!(code(&place, &both), Some(75));
    assert_eq!(code(&place, &["-n", "back:/x/1", "--", "true"]), Some(0));
    let both = ["-w", "300ms", "back:/x/1", "back:/y/1", "--", "true"];
    assert_eq!(code(&place, &both), Some(124));
    assert_eq!(code(&place, &["-n", "back:/x/1", "--", "true"]), Some(0));
    holder.signal("TERM");
    holder.end();
}

/// A repository in a bucket of an independent S3 server: held, seen by others, lost to a break,
/// released.
#[test]
fn a_bucket() {
    let (place, moto) = (RunFixture::new(), Moto::start());
    let bucket = "s3://bucket/team/repo";
    let here = |verb: &str, arguments: &[&str]| {
        let mut command = Command::new(TENURE);
        command.arg(verb).args(arguments).current_dir(place.path());
        command.envs(moto.environment()).stdin(Stdio::null());
        command
    };
    let ends = |verb: &str, arguments: &[&str]| {
        let output = here(verb, arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let script = "echo held; exec sleep 1000";
    let held = [
        "--ttl",
        "30s",
        "--purpose",
        "backup",
        bucket,
        "--",
        "sh",
        "-c",
        script,
    ];
    let holder = Holder::start(here("run", &held));
    let (code, said) = ends("run", &["-n", bucket, "--", "true"]);
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("backup"), "{said}");
    let (code, said) = ends("ls", &["--json", bucket]);
    assert_eq!(code, Some(0), "{said}");
    let listed: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    assert!(listed.to_string().contains("backup"), "{listed}");
    assert_eq!(ends("break", &["--force", "--all", bucket]).0, Some(0));
    assert_eq!(holder.end().code, Some(120), "the lock was lost");

    let (code, said) = ends(
        "run",
        &["-n", bucket, "--", "sh", "-c", "echo fence $TENURE_FENCE"],
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("fence "), "{said}");
    assert_eq!(ends("try", &[bucket]).0, Some(0), "given back");
}

/// C4 (keeper and process group), C17: SIGKILL of tenure on a lease: the tree is gone long before
/// the lease ends.
#[test]
fn killing_tenure_ends_the_tree() {
    let place = RunFixture::new();
    let script = "setsid sh -c 'echo $$ > pids; exec sleep 1000' & while ! test -s pids; do sleep 0.01; done; echo held; wait";
    let holder = Holder::start(run(
        &place,
        &["--ttl", "5s", "k:/x", "--", "sh", "-c", script],
    ));
    let member = place.pids("pids")[0];
    holder.signal("KILL");
    holder.reap();
    let look = "test ! -e /proc/$(cat pids)/exe";
    assert_eq!(
        code(&place, &["-w", "60s", "k:/x", "--", "sh", "-c", look]),
        Some(0)
    );
    assert!(!shell::is_alive(member));
}

/// A waiter that is killed by a signal withdraws, so the lock is not granted to a dead process.
#[test]
fn a_signal_while_waiting_leaves_no_place_in_line() {
    let place = RunFixture::new();
    let holder = hold(&place, &["q:/x"]);
    let waiters = || {
        json(&place, &["why", "--json", "q:/x"])["waiters"]
            .as_array()
            .unwrap()
            .len()
    };
    for (name, number) in [("TERM", 15), ("INT", 2)] {
        let mut waiter = run(&place, &["q:/x", "--", "touch", "ran"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it is in line", || waiters() == 1);
        shell::signal(name, waiter.id());
        let status = waiter.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(number)
        );
        assert_eq!(waiters(), 0, "{name}");
    }
    holder.signal("TERM");
    holder.end();
    assert!(!place.file("ran").exists());
}

/// C19: if the lease would expire while the command is stopped, the remaining time is shown; the
/// command is ended in time.
#[test]
fn a_stopped_command_and_its_lease() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line(&format!("export TENURE_URL={}", url()));
    terminal.expect("ready> ");
    terminal
        .line("$T run --ttl 5s z:/x -- sh -c 'echo $$ > pids; echo run''ning; exec sleep 1000'");
    terminal.expect("running");
    let child = place.pids("pids")[0];
    terminal.key(0x1a);
    terminal.expect("the lease expires in ");
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    eventually("the keeper has ended it", || !shell::is_alive(child));
    assert_eq!(code(&place, &["-w", "60s", "z:/x", "--", "true"]), Some(0));
    terminal.line("fg");
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=120");
}

/// C2: the daemon cannot be reached: 125, and nothing was run.
#[test]
fn no_daemon() {
    let place = RunFixture::new();
    let address = "tenure://127.0.0.1:1/x:/y";
    assert_eq!(
        code(&place, &["-w", "300ms", address, "--", "touch", "ran"]),
        Some(125)
    );
    assert_eq!(
        code(&place, &["-n", address, "--", "touch", "ran"]),
        Some(125)
    );
    assert!(!place.file("ran").exists());
    let (failed, text) = tenure(&place, &["try", address]);
    assert_eq!(failed, Some(125), "{text}");
}

/// C1: options that the daemon does not support are refused before anything is changed.
#[test]
fn what_makes_no_sense_here() {
    let place = RunFixture::new();
    assert_eq!(
        code(&place, &["--not-durable", "x:/y", "--", "true"]),
        Some(2)
    );
    assert_eq!(
        code(&place, &["--ttl", "0s", "x:/y", "--", "true"]),
        Some(2)
    );
    assert_eq!(
        code(&place, &["--ttl", "8000h", "x:/y", "--", "true"]),
        Some(2)
    );
}

/// `doctor` shows what the daemon supports, and that it answers.
#[test]
fn doctor_asks_the_daemon() {
    let place = RunFixture::new();
    let answer = json(&place, &["doctor", "--json", "d:/x"]);
    assert_eq!(answer["capabilities"]["order"], "fair");
    assert_eq!(answer["found"]["daemon"]["answers"], true);
}
