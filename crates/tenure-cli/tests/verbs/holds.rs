//! `lock`, `renew`, `unlock` (C13: holds for scripts) and `fence check`.

use std::fs;

use super::shell::{RunFixture, TENURE, eventually};

/// Runs a shell script with `$T` as the binary. Returns its standard output.
fn sh(place: &RunFixture, script: &str) -> (Option<i32>, String) {
    let output = std::process::Command::new("sh")
        .args(["-c", script])
        .env("T", TENURE)
        .env_remove("TENURE_URL")
        .current_dir(place.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned();
    (output.status.code(), text)
}

/// C13: a hold is one word on a line; the lock is held while the shell runs; `unlock` releases it.
#[test]
fn a_script_takes_and_gives_back() {
    let place = RunFixture::new();
    let script = "hold=$($T lock f) || exit 1; echo \"$hold\" | wc -w; \
                  $T run -n f -- true 2>/dev/null; echo $?; \
                  $T renew \"$hold\" && $T unlock \"$hold\" && $T run -n f -- true; echo $?";
    assert_eq!(sh(&place, script), (Some(0), "1\n75\n0".to_owned()));
    assert!(!place.file("f.lock").exists());
}

/// C13: the hold is bound to the calling shell, not to the subshell that exits at once.
#[test]
fn a_hold_follows_the_calling_shell() {
    let place = RunFixture::new();
    let script = "hold=$($T lock f | cat); echo $$; \
                  grep -o '\"pid\": *[0-9]*' f.lock | head -n 1 | tr -dc 0-9; echo; \
                  $T run -n f -- true 2>/dev/null; echo $?";
    let (_, text) = sh(&place, script);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], lines[1], "the record names the shell");
    assert_eq!(lines[2], "75");
    // The shell has ended: the lock is dead, and the next command gets it.
    assert_eq!(place.code(&["-n", "f", "--", "true"]), Some(0));
}

/// C13: `--pid` sets the process explicitly.
#[test]
fn a_hold_follows_the_process_it_is_told_to() {
    let place = RunFixture::new();
    let mut sleeper = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let script = format!("$T lock --pid {} f > hold", sleeper.id());
    assert_eq!(sh(&place, &script).0, Some(0));
    assert!(!place.is_free(), "the process lives");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(place.is_free(), "it is gone");
}

/// C13: the word means the same from another directory.
#[test]
fn a_hold_is_good_anywhere() {
    let place = RunFixture::new();
    let script = "hold=$($T lock f); cd /; $T unlock \"$hold\"; echo $?; cd - > /dev/null; test ! -e f.lock; echo $?";
    assert_eq!(sh(&place, script).1, "0\n0");
}

/// C13: a hold that has ended is refused, and the lock of another holder is not changed.
#[test]
fn a_hold_that_is_over_is_refused() {
    let place = RunFixture::new();
    let script = "hold=$($T lock f); $T unlock \"$hold\"; \
                  other=$($T lock f); $T unlock \"$hold\" 2>/dev/null; echo $?; \
                  $T renew \"$hold\" 2>/dev/null; echo $?; $T run -n f -- true 2>/dev/null; echo $?; \
                  $T unlock nonsense 2>/dev/null; echo $?";
    let (_, text) = sh(&place, script);
    let codes: Vec<&str> = text.lines().collect();
    assert!(codes[0] != "0" && codes[1] != "0", "{text}");
    assert_eq!(codes[2..], ["75", "2"]);
}

/// C13: `--json` has hold, where, fence and ttl_ms.
#[test]
fn a_hold_as_json() {
    let place = RunFixture::new();
    let (code, text) = sh(&place, "$T lock --json --fence --pid 1 f");
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["fence"], 1);
    assert!(json["ttl_ms"].is_null());
    assert!(json["where"].as_str().unwrap().ends_with("/f"));
    let hold = json["hold"].as_str().unwrap();
    assert_eq!(sh(&place, &format!("$T unlock '{hold}'")).0, Some(0));
}

/// C13, C1: waiting, its limit and its codes are those of `run`.
#[test]
fn taking_a_hold_waits_as_run_does() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    let codes = "$T lock -n f 2>/dev/null; echo $?; $T lock -w 50ms f 2>/dev/null; echo $?; \
                 $T lock -n -E 9 f 2>/dev/null; echo $?; $T lock -s f 2>/dev/null; echo $?";
    assert_eq!(sh(&place, codes).1, "75\n124\n9\n2");
    holder.signal("TERM");
    holder.end();
}

/// `fence check` uses C3 (environment of the child)'s variables, from any directory: 0 if valid,
/// 120 if not.
#[test]
fn a_fence_is_checked_from_inside() {
    let place = RunFixture::new();
    let script = "cd /; $T fence check > /dev/null; echo $?; cd - > /dev/null; rm f.lock; $T fence check > /dev/null; echo $?";
    let output = place
        .run(&[
            "--fence",
            "--on-lost",
            "notify",
            "f",
            "--",
            "sh",
            "-c",
            script,
        ])
        .env("T", TENURE)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n120\n");
}

/// `fence check` of another hold, or of an older fence, is 120; without arguments it is 2.
#[test]
fn a_fence_is_checked_from_outside() {
    let place = RunFixture::new();
    let holder = place.hold(
        &["--fence"],
        "echo $TENURE_OWNER > owner; echo held; exec sleep 1000",
    );
    let owner = fs::read_to_string(place.file("owner")).unwrap();
    let owner = owner.trim();
    let check = |options: &str| {
        sh(
            &place,
            &format!("$T fence check {options} > /dev/null 2>&1"),
        )
        .0
    };
    assert_eq!(check(&format!("--owner {owner} f")), Some(0));
    assert_eq!(check(&format!("--owner {owner} --fence 1 f")), Some(0));
    assert_eq!(check(&format!("--owner {owner} --fence 7 f")), Some(120));
    assert_eq!(
        check("--owner 0123456789abcdef0123456789abcdef f"),
        Some(120)
    );
    assert_eq!(check(""), Some(2));
    holder.signal("TERM");
    holder.end();
    eventually("it is over", || {
        check(&format!("--owner {owner} f")) == Some(120)
    });
}

/// C13 (holds for scripts): in a shell inside a shell, the hold follows the inner one.
#[test]
fn a_hold_follows_the_inner_shell() {
    let place = RunFixture::new();
    fs::write(place.file("inner"), "\"$T\" lock f > /dev/null; :\n").unwrap();
    // Both shells have the same command line.
    let outer = "bash < inner\n\"$T\" run -n f -- true; echo code=$?\n";
    fs::write(place.file("outer"), outer).unwrap();
    let output = std::process::Command::new("bash")
        .stdin(fs::File::open(place.file("outer")).unwrap())
        .current_dir(place.path())
        .env("T", super::shell::TENURE)
        .env_remove("TENURE_URL")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "code=0\n",
        "{output:?}"
    );
}
