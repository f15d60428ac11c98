//! Help texts, completions and manual pages, which are generated from the same descriptions.

use std::fs;
use std::process::Command;

use super::shell::{RunFixture, TENURE};

const VERBS: &[&str] = &[
    "run",
    "lock",
    "renew",
    "unlock",
    "try",
    "ls",
    "why",
    "watch",
    "top",
    "ask",
    "break",
    "check",
    "fence",
    "policy",
    "doctor",
    "serve",
    "completions",
];

fn tenure(arguments: &[&str]) -> String {
    let output = Command::new(TENURE).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Every command is listed, and its help has an example.
#[test]
fn help_teaches_by_example() {
    let all = tenure(&["--help"]);
    for verb in VERBS {
        assert!(
            all.contains(&format!("  {verb} ")),
            "{verb} is not in {all}"
        );
        let verb = if *verb == "fence" {
            vec!["fence", "check", "--help"]
        } else {
            vec![*verb, "--help"]
        };
        let help = tenure(&verb);
        assert!(help.contains("Examples:\n"), "{verb:?} has no examples");
        assert!(
            help.contains("  tenure ") || help.contains("=$(tenure "),
            "{verb:?}"
        );
    }
    for code in ["75", "124", "120", "121", "125"] {
        assert!(all.contains(code), "exit code {code} is not explained");
    }
}

/// The shells accept the completion scripts.
#[test]
fn completions_are_taken_by_the_shells() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = tenure(&["completions", shell]);
        for verb in VERBS {
            assert!(script.contains(verb), "{shell} does not know {verb}");
        }
    }
    let place = RunFixture::new();
    fs::write(place.file("completion"), tenure(&["completions", "bash"])).unwrap();
    let script = "source ./completion && complete -p tenure && COMP_WORDS=(tenure w) COMP_CWORD=1 \
                  && _tenure tenure w tenure && echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", script])
        .current_dir(place.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.ends_with("why watch\n") || text.ends_with("watch why\n"),
        "{text}"
    );
}

/// There is a manual page for each command, with its options.
#[test]
fn manual_pages_are_written() {
    let place = RunFixture::new();
    tenure(&["manual", &place.path().display().to_string()]);
    for verb in VERBS {
        let page = fs::read_to_string(place.file(&format!("tenure-{verb}.1"))).unwrap();
        assert!(
            page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"),
            "{verb}"
        );
    }
    let page = fs::read_to_string(place.file("tenure-run.1")).unwrap();
    assert!(page.contains("on\\-lost"), "{page}");
}
