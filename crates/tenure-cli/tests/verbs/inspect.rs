//! `try`, `ls`, `why`, `watch`, `top`, `doctor`: inspection without acquiring.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::pty::Terminal;
use super::shell::{RunFixture, TENURE};

fn tenure(place: &RunFixture, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(TENURE)
        .args(arguments)
        .current_dir(place.path())
        .env_remove("TENURE_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn json(place: &RunFixture, arguments: &[&str]) -> Value {
    let (_, out, errors) = tenure(place, arguments);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{errors}"))
}

/// C8: free is 0, held is 75 and names the holder; nothing is taken.
#[test]
fn try_says_whether_it_is_free() {
    let place = RunFixture::new();
    let (code, out, _) = tenure(&place, &["try", "f"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("is free"), "{out}");
    assert!(!place.file("f.lock").exists(), "nothing was taken");
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let (code, out, _) = tenure(&place, &["try", "f"]);
    assert_eq!(code, Some(75));
    assert!(out.contains(&format!("pid {}", holder.pid())), "{out}");
    assert!(out.contains("nightly"), "{out}");
    let answer = json(&place, &["try", "--json", "f"]);
    assert_eq!(answer["free"], false);
    assert_eq!(answer["holders"][0]["holder"]["pid"], holder.pid());
    holder.signal("TERM");
    holder.end();
}

/// Lists the locks of a directory, as a table and as JSON.
#[test]
fn ls_lists_a_directory() {
    let place = RunFixture::new();
    assert_eq!(tenure(&place, &["ls"]).1, "");
    assert_eq!(json(&place, &["ls", "--json"]), Value::Array(Vec::new()));
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let (code, out, _) = tenure(&place, &["ls"]);
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("WHERE"), "{out}");
    assert!(
        lines[1].contains("nightly") && lines[1].contains("alive"),
        "{out}"
    );
    let list = json(&place, &["ls", "--json", "."]);
    assert_eq!(list.as_array().unwrap().len(), 1);
    let place_name = list[0]["place"].as_str().unwrap();
    assert!(
        place_name.starts_with("sidecar:") && place_name.ends_with("/f"),
        "{place_name}"
    );
    assert_eq!(list[0]["holders"][0]["verdict"]["life"], "alive");
    holder.signal("TERM");
    holder.end();
}

/// C8: sentences with the holder, its purpose, whether it is alive, and the next step.
#[test]
fn why_explains_in_sentences() {
    let place = RunFixture::new();
    let (code, out, _) = tenure(&place, &["why", "f"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("is free"), "{out}");
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let (_, out, _) = tenure(&place, &["why", "f"]);
    for part in [
        "is held",
        "nightly",
        "alive",
        "next: wait for it",
        "break --force --id",
    ] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
    holder.signal("KILL");
    holder.end();
    super::shell::eventually("it is judged dead", || {
        json(&place, &["why", "--json", "f"])["free"] == true
    });
}

/// A watch begins with the present holds and then reports changes.
#[test]
fn watch_tells_what_changes() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let mut watch = Command::new(TENURE)
        .args(["watch", "--json", "."])
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        line["kind"].as_str().unwrap().to_owned()
    };
    assert_eq!(next(), "present");
    assert_eq!(next(), "present-end");
    holder.signal("TERM");
    holder.end();
    assert_eq!(next(), "released");
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    assert_eq!(next(), "granted");
    holder.signal("TERM");
    holder.end();
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// `top` on a real terminal shows the holder and quits on `q`; without a terminal it is refused.
#[test]
fn top_shows_and_leaves() {
    let place = RunFixture::new();
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let mut terminal = Terminal::open(&place);
    terminal.line("stty rows 20 cols 150; TERM=xterm $T top --every 100ms");
    terminal.expect("WHERE");
    terminal.expect("nightly");
    terminal.key(b'q');
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=0");
    assert_eq!(tenure(&place, &["top"]).0, Some(2));
    holder.signal("TERM");
    holder.end();
}

/// `doctor` shows what a backend supports.
#[test]
fn doctor_tells_what_a_place_can_do() {
    let place = RunFixture::new();
    let (code, out, _) = tenure(&place, &["doctor", "f"]);
    assert_eq!(code, Some(0));
    for part in ["modes     exclusive", "lease     none", "files"] {
        assert!(out.contains(part), "{part} is not in {out}");
    }
    let answer = json(&place, &["doctor", "--json", "f"]);
    assert_eq!(answer["capabilities"]["modes"], "exclusive");
    assert!(answer["found"]["files"]["file_system"].is_string());
    let repo = format!("repo:{}", place.path().display());
    let answer = json(&place, &["doctor", "--json", &repo]);
    assert!(answer["found"]["store"]["level"].is_number(), "{answer}");
    assert_eq!(tenure(&place, &["doctor", "--clean", "f"]).0, Some(2));
}

/// C9: the progress line on a terminal is updated in place and cleared before the command starts.
#[test]
fn the_waiting_line_on_a_terminal() {
    let place = RunFixture::new();
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    let mut terminal = Terminal::open(&place);
    terminal.line("stty cols 100; $T run f -- echo star''ted");
    terminal.expect("waiting: ");
    terminal.expect("\r\u{1b}[Ktenure: 1 s behind");
    terminal.expect("nightly");
    terminal.expect("\r\u{1b}[Ktenure: 2 s behind");
    holder.signal("TERM");
    holder.end();
    terminal.expect("\r\u{1b}[Kstarted");
}

/// S30 (sidecar address and verbs), C10 (changes to foreign locks): files of package managers are
/// not lock records. They are listed only with `--all`, never advised to be broken, and not removed.
#[test]
fn files_of_other_programs_are_left_alone() {
    let place = RunFixture::new();
    let files = [
        (
            "Cargo",
            "# This file is automatically @generated by Cargo.\nversion = 4\n",
        ),
        ("yarn", "# yarn lockfile v1\n"),
        ("Gemfile", "GEM\n  remote: https://rubygems.org/\n"),
        ("poetry", "[[package]]\nname = \"x\"\n"),
        (
            "flake",
            "{\"nodes\": {}, \"root\": \"root\", \"version\": 7}\n",
        ),
        ("composer", "{\"packages\": [], \"content-hash\": \"x\"}\n"),
    ];
    for (name, text) in files {
        std::fs::write(place.file(&format!("{name}.lock")), text).unwrap();
    }
    let said = |verb: &str, arguments: &[&str]| {
        let output = place.tenure(verb, arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (code, text) = said("ls", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("no lock is held here"), "{text}");
    let (_, text) = said("ls", &["--all"]);
    for (name, content) in files {
        assert!(text.contains(&format!("{name}  ")), "{text}");
        let address = format!("./{name}");
        let (_, why) = said("why", &[&address]);
        assert!(why.contains("not a lock record"), "{why}");
        assert!(!why.contains("tenure break"), "{why}");
        let (code, broken) = said("break", &["--force", &address]);
        assert_eq!(code, Some(125), "{broken}");
        let lock = place.file(&format!("{name}.lock"));
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), content);
    }
    assert!(text.contains("not a lock record"), "{text}");
    let (code, text) = said("break", &["--force", "--not-a-record", "./yarn"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!place.file("yarn.lock").exists());
}

/// C2, C8: `run --json` says on standard error why the command was not run, with class, code and
/// holder; standard output belongs to the command.
#[test]
fn a_refused_run_as_json() {
    let place = RunFixture::new();
    let holder = place.hold(&["--purpose", "nightly"], "echo held; exec sleep 1000");
    for (arguments, code) in [(&["-n"][..], 75), (&["-w", "1500ms"], 124)] {
        let mut all = vec!["--json"];
        all.extend(arguments);
        all.extend(["f", "--", "true"]);
        let output = place.run(&all).output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert!(output.stdout.is_empty());
        let json: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(json["code"], code);
        assert!(json["error"]["class"].is_string(), "{json}");
        let blocker = &json["error"]["busy"]["blocker"];
        assert_eq!(blocker["holder"]["purpose"], "nightly", "{json}");
        assert!(blocker["held_ms"].is_u64(), "{json}");
    }
    holder.signal("TERM");
    holder.end();
}

/// `try -x` is the default, `-s` and `-x` exclude each other.
#[test]
fn try_takes_both_modes() {
    let place = RunFixture::new();
    let code = |arguments: &[&str]| {
        place
            .tenure("try", arguments)
            .output()
            .unwrap()
            .status
            .code()
    };
    assert_eq!(code(&["-x", "f"]), Some(0));
    assert_eq!(code(&["-s", "-x", "f"]), Some(2));
}
