//! `break` and `ask`: commands that change another holder's lock (C10 changes to foreign locks, C16
//! details of codes and break).

use std::fs;
use std::process::{Command, Stdio};

use super::pty::Terminal;
use super::shell::{RunFixture, TENURE};

fn tenure(place: &RunFixture, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(TENURE)
        .args(arguments)
        .current_dir(place.path())
        .env_remove("TENURE_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

/// C10: without a terminal both are refused without `--force`, and nothing happens.
#[test]
fn off_a_terminal_they_need_force() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    for verb in ["break", "ask"] {
        let where_ = if verb == "ask" { "upload:./up" } else { "f" };
        let (code, text) = tenure(&place, &[verb, where_]);
        assert_eq!(code, Some(2), "{verb}: {text}");
        assert!(text.contains("--force"), "{verb}: {text}");
    }
    assert!(!place.is_free(), "it is still held");
    holder.signal("TERM");
    holder.end();
}

/// C10, C16: `--force` removes a live lock and prints what and whose it was; the victim is stopped.
#[test]
fn force_breaks_a_live_lock() {
    let place = RunFixture::new();
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let (code, text) = tenure(&place, &["break", "--force", "f"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("removed the lock of sidecar:f"), "{text}");
    assert!(text.contains(&holder.pid().to_string()), "{text}");
    assert_eq!(holder.end().code, Some(120));
}

/// C16: an id breaks only that hold.
#[test]
fn an_id_protects_the_next_holder() {
    let place = RunFixture::new();
    let holder = place.hold(
        &[],
        "echo $TENURE_TOKEN > token; echo held; exec sleep 1000",
    );
    let wrong = "0123456789abcdef0123456789abcdef";
    let (code, text) = tenure(&place, &["break", "--force", "--id", wrong, "f"]);
    assert_eq!(code, Some(125), "{text}");
    assert!(!place.is_free());
    let token = fs::read_to_string(place.file("token")).unwrap();
    let (code, text) = tenure(&place, &["break", "--force", "--id", token.trim(), "f"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(holder.end().code, Some(120));
}

/// C16: if fences are in use, the victim is refused afterwards.
#[test]
fn breaking_raises_the_fence() {
    let place = RunFixture::new();
    let holder = place.hold(&["--fence"], "echo held; exec sleep 1000");
    let (code, text) = tenure(&place, &["break", "--force", "--json", "f"]);
    assert_eq!(code, Some(0), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["broken"].as_array().unwrap().len(), 1);
    holder.end();
    let next = place
        .run(&["--fence", "f", "--", "sh", "-c", "echo $TENURE_FENCE"])
        .output();
    let fence: u64 = String::from_utf8_lossy(&next.unwrap().stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(fence > 1, "{fence}");
}

/// C16: a break without a lock fails with a message.
#[test]
fn nothing_to_break() {
    let place = RunFixture::new();
    let (code, text) = tenure(&place, &["break", "--force", "f"]);
    assert_eq!(code, Some(125));
    assert!(text.contains("not held"), "{text}");
}

/// C16: on a terminal a dead lock is shown and removed after a yes; a live one is refused.
#[test]
fn on_a_terminal_it_asks() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let mut terminal = Terminal::open(&place);
    terminal.line("$T break f; echo code=$?");
    terminal.expect("add --force");
    terminal.expect("code=75");
    // A lock of a dead process, as another program would leave it.
    let dead = place.file("dead.lock");
    let record = fs::read_to_string(place.file("f.lock")).unwrap();
    fs::write(
        &dead,
        record.replace(&format!("\"pid\": {}", holder.pid()), "\"pid\": 4194303"),
    )
    .unwrap();
    terminal.line("$T break dead; echo code=$?");
    terminal.expect("remove it? [y/N] ");
    terminal.line("n");
    terminal.expect("nothing was removed");
    terminal.expect("code=125");
    assert!(dead.exists());
    terminal.line("$T break dead; echo code=$?");
    terminal.expect("remove it? [y/N] ");
    terminal.line("y");
    terminal.expect("removed the lock of");
    terminal.expect("code=0");
    assert!(!dead.exists());
    holder.signal("TERM");
    holder.end();
}

/// C1 (options of run), C10: a release request reaches the holder of an upload, which ends with
/// 121.
#[test]
fn an_upload_gives_way() {
    let place = RunFixture::new();
    fs::create_dir(place.file("up")).unwrap();
    let holder = super::shell::Holder::start(place.run(&[
        "upload:up/7",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 1000",
    ]));
    let (code, text) = tenure(
        &place,
        &["ask", "--force", "--reason", "my turn", "upload:up/7"],
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&holder.pid().to_string()), "{text}");
    let ended = holder.end();
    assert_eq!(ended.code, Some(121), "{ended:?}");
    assert!(
        ended.errors.contains("asks for the lock"),
        "{}",
        ended.errors
    );
}

/// C1: `--on-ask notify` informs the command, `ignore` does nothing; the lock stays held.
#[test]
fn on_ask_decides() {
    let place = RunFixture::new();
    fs::create_dir(place.file("up")).unwrap();
    place.fifo("go");
    let script = "echo held; read x < go; head -n 1 <&$TENURE_NOTICE_FD; exit 4";
    let mut holder = super::shell::Holder::start(place.run(&[
        "--on-ask",
        "notify",
        "upload:up/7",
        "--",
        "sh",
        "-c",
        script,
    ]));
    assert_eq!(
        tenure(&place, &["ask", "--force", "upload:up/7"]).0,
        Some(0)
    );
    holder.expect_error("asks for the lock");
    place.say("go");
    let ended = holder.end();
    assert_eq!(ended.code, Some(4));
    assert!(ended.out.contains(r#""event":"ask""#), "{}", ended.out);
}

/// C1: `--ask` sends a request while it waits, and gets the lock.
#[test]
fn a_waiter_asks() {
    let place = RunFixture::new();
    fs::create_dir(place.file("up")).unwrap();
    let holder = super::shell::Holder::start(place.run(&[
        "upload:up/7",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 1000",
    ]));
    assert_eq!(
        place.code(&["--ask", "-w", "60s", "upload:up/7", "--", "true"]),
        Some(0)
    );
    assert_eq!(holder.end().code, Some(121));
}

/// Lock files have no release requests: refused with the reason.
#[test]
fn a_lock_file_cannot_be_asked() {
    let place = RunFixture::new();
    let (code, text) = tenure(&place, &["ask", "--force", "f"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("cannot be asked"), "{text}");
}

/// A reclaim guard that another program left blocks everything until a person removes it.
#[test]
fn a_guard_that_was_left_is_removed() {
    let place = RunFixture::new();
    fs::create_dir(place.file("f.lock.reclaim")).unwrap();
    assert_eq!(
        place.code(&["-n", "f", "--", "touch", "ran"]),
        Some(75),
        "another program may be cleaning up"
    );
    let (_, text) = tenure(&place, &["why", "f"]);
    assert!(text.contains("tenure break --guard"), "{text}");
    assert_eq!(tenure(&place, &["break", "--guard", "f"]).0, Some(2));
    let (code, text) = tenure(&place, &["break", "--force", "--guard", "f"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(place.is_free());
    assert_eq!(
        tenure(&place, &["break", "--force", "--guard", "mem:x"]).0,
        Some(2)
    );
}
