//! Addresses (C18: address grammar) and several locks at once (C6: several locks at once).

use std::fs;
use std::process::Child;

use super::shell::{Holder, RunFixture};

/// C18: an address without a known form is a file, and `./` always means a file.
#[test]
fn a_file_is_what_looks_like_nothing_else() {
    let place = RunFixture::new();
    fs::create_dir(place.file("s3:")).unwrap();
    for (address, lock) in [
        ("plain", "plain.lock"),
        ("./s3:/x", "s3:/x.lock"),
        ("sidecar:a b", "a b.lock"),
        ("./a:b", "a:b.lock"),
    ] {
        let script = format!("test -e '{lock}'");
        assert_eq!(
            place.code(&[address, "--", "sh", "-c", &script]),
            Some(0),
            "{address}"
        );
    }
}

/// C18, C2: an unknown scheme is an error and starts nothing.
#[test]
fn an_unknown_scheme_is_refused() {
    let place = RunFixture::new();
    for address in [
        "ftp://x/y",
        "http://x",
        "exclusive:",
        "upload:",
        "tenure://",
    ] {
        assert_eq!(
            place.code(&[address, "--", "touch", "ran"]),
            Some(2),
            "{address}"
        );
    }
    assert!(!place.file("ran").exists());
}

/// C18, C2: a mistyped address of a shared lock is refused, and makes no file and no directory.
#[test]
fn a_near_miss_makes_no_local_lock() {
    let place = RunFixture::new();
    for address in [
        "tenant:acme",
        "tenant:/acme//x",
        "tenant:/acme/../x",
        "s3:bucket/x",
        "gs:bucket",
        "ftp:x",
        "localhost:50051",
        "tenure:x",
        "a:b",
    ] {
        for verb in [
            "run", "lock", "try", "why", "ask", "break", "doctor", "ls", "watch",
        ] {
            let command: &[&str] = match verb {
                "run" => &[address, "--", "touch", "ran"],
                _ => &[address],
            };
            let output = place.tenure(verb, command).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{verb} {address}: {text}");
            assert!(text.contains(&format!("write ./{address}")), "{text}");
        }
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

/// C6: all or none: if one lock is held, the others are released.
#[test]
fn all_or_none() {
    let place = RunFixture::new();
    let holder = place.hold(&[], "echo held; exec sleep 1000");
    assert_eq!(
        place.code(&["-n", "a", "f", "z", "--", "touch", "ran"]),
        Some(75)
    );
    assert!(!place.file("ran").exists());
    for free in ["a", "z"] {
        assert_eq!(place.code(&["-n", free, "--", "true"]), Some(0));
    }
    holder.signal("TERM");
    holder.end();
}

/// C6: the same lock twice, however it is spelled, is one lock.
#[test]
fn the_same_lock_twice_is_one() {
    let place = RunFixture::new();
    fs::create_dir(place.file("d")).unwrap();
    std::os::unix::fs::symlink(place.file("d"), place.file("link")).unwrap();
    let output = place
        .run(&["d/f", "link/f", "d/../d/f", "sidecar:./d/f", "--", "env"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("TENURE_WHERE=d/f\n"), "{text}");
    assert!(!text.contains("TENURE_WHERE_2"), "{text}");
}

/// C6: two commands with reversed lists do not deadlock.
#[test]
fn reversed_lists_do_not_deadlock() {
    let place = RunFixture::new();
    fs::write(place.file("n"), "0").unwrap();
    let script = "n=$(cat n); echo $((n + 1)) > n";
    let start = |list: &[&str]| -> Child {
        let mut arguments = list.to_vec();
        arguments.extend(["--", "sh", "-c", script]);
        place.run(&arguments).spawn().unwrap()
    };
    let mut children = Vec::new();
    for _ in 0..8 {
        children.push(start(&["a", "b", "c"]));
        children.push(start(&["c", "b", "a"]));
        children.push(start(&["b", "c"]));
    }
    for mut child in children {
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
    assert_eq!(fs::read_to_string(place.file("n")).unwrap().trim(), "24");
}

/// C6, C3: plain names for the first lock, numbered names for the others, in the given order.
#[test]
fn the_environment_names_all_of_them() {
    let place = RunFixture::new();
    let script = "env | grep ^TENURE_; for fd in $TENURE_FD $TENURE_FD_2; do readlink /proc/self/fd/$fd; done";
    let output = place
        .run(&["--fence", "z", "a", "--", "sh", "-c", script])
        .env("TENURE_WHERE_3", "stale")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        "TENURE_WHERE=z\n",
        "TENURE_WHERE_2=a\n",
        "TENURE_FENCE=",
        "TENURE_FENCE_2=",
        "/z.lock\n",
        "/a.lock\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("TENURE_WHERE_3"), "{text}");
}

/// C6: when one lock is lost, the command is stopped and the others are released.
#[test]
fn they_are_lost_as_one() {
    let place = RunFixture::new();
    let holder =
        Holder::start(place.run(&["f", "g", "--", "sh", "-c", "echo held; exec sleep 1000"]));
    fs::remove_file(place.file("g.lock")).unwrap();
    assert_eq!(holder.end().code, Some(120));
    assert!(place.is_free());
}

/// C17 (after SIGKILL), C6: after SIGKILL of tenure all locks stay held until the tree has ended.
#[test]
fn all_of_them_outlive_tenure() {
    let place = RunFixture::new();
    place.fifo("go");
    let holder = Holder::start(place.run(&[
        "--no-kill",
        "f",
        "g",
        "--",
        "sh",
        "-c",
        "echo held; read x < go",
    ]));
    holder.signal("KILL");
    holder.reap();
    assert!(!place.is_free());
    assert_eq!(place.code(&["-n", "g", "--", "true"]), Some(75));
    place.say("go");
    assert_eq!(place.code(&["-w", "60s", "f", "g", "--", "true"]), Some(0));
}

/// C1: `--also` adds a lock, possibly on another backend.
#[test]
fn also_holds_one_more() {
    let place = RunFixture::new();
    fs::create_dir(place.file("up")).unwrap();
    let script = "test -e f.lock && test -e up/7.lock && echo $TENURE_WHERE $TENURE_WHERE_2";
    let output = place
        .run(&["f", "--also", "upload:up/7", "--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "f upload:up/7\n");
}
