//! Job control on a real terminal (C19: job control on terminals), and the progress line (C9:
//! progress while waiting).
//!
//! The expected text is never part of the typed text, because the terminal echoes that.

use super::pty::Terminal;
use super::shell::{RunFixture, eventually, is_alive, signal, state};

/// C19: the command's group is the foreground group, and the shell gets the terminal back.
#[test]
fn the_command_has_the_terminal() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    // Fields 5 and 8 of stat: its group, and the foreground group of its terminal.
    terminal
        .line("$T run f -- sh -c 'set -- $(cat /proc/$$/stat); test $5 = $8 && echo in''front'");
    terminal.expect("infront");
    terminal.expect("ready> ");
    terminal.line("set -- $(cat /proc/$$/stat); test $5 = $8 && echo back''again");
    terminal.expect("backagain");
}

/// C19: the command can read from the terminal.
#[test]
fn the_command_reads_the_keys() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo as''king; read x; echo got-$x'");
    terminal.expect("asking");
    terminal.line("word");
    terminal.expect("got-word");
    terminal.expect("ready> ");
}

/// C19: Ctrl-C goes to the command alone; its answer counts.
#[test]
fn control_c_goes_to_the_command_alone() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line(
        "$T run f -- sh -c 'trap \"echo inter''rupted; exit 7\" INT; echo run''ning; read x'",
    );
    terminal.expect("running");
    terminal.key(0x03);
    terminal.expect("interrupted");
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=7");
    assert!(place.is_free());
}

/// C2 (exit codes), C19: a command that dies of Ctrl-C or Ctrl-\ is 128+n.
#[test]
fn keys_that_kill_the_command() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    for (key, code) in [(0x03, "code=130"), (0x1c, "code=131")] {
        terminal.line("ulimit -c 0; $T run f -- sh -c 'echo run''ning; exec sleep 1000'");
        terminal.expect("running");
        terminal.key(key);
        terminal.expect("ready> ");
        terminal.line("echo code=$?");
        terminal.expect(code);
        terminal.expect("ready> ");
    }
}

/// C19: Ctrl-Z stops tenure with the command; the lock stays held; `fg` lets both go on.
#[test]
fn control_z_and_fg() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo run''ning; read x; echo got-$x; exit 5'");
    terminal.expect("running");
    terminal.key(0x1a);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert!(
        !place.is_free(),
        "the lock is held while the command is stopped"
    );
    terminal.line("fg");
    terminal.line("word");
    terminal.expect("got-word");
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=5");
    assert!(place.is_free());
}

/// C19: `bg` lets the command go on in the background, and the shell keeps the terminal.
#[test]
fn control_z_and_bg() {
    let place = RunFixture::new();
    place.fifo("go");
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo run''ning; read x < go; echo d''one; exit 5'");
    terminal.expect("running");
    terminal.key(0x1a);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    terminal.line("bg");
    terminal.expect("ready> ");
    place.say("go");
    terminal.expect("done");
    // The shell still has the terminal, or it could not answer.
    terminal.line("wait %1; echo code=$?");
    terminal.expect("code=5");
}

/// C19: stopped and continued repeatedly.
#[test]
fn control_z_again_and_again() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo $$ > pids; echo run''ning; exec sleep 1000'");
    terminal.expect("running");
    let child = place.pids("pids")[0];
    for _ in 0..3 {
        terminal.key(0x1a);
        terminal.expect("Stopped");
        terminal.expect("ready> ");
        terminal.line("fg");
        eventually("the command goes on", || state(child) == Some('S'));
    }
    terminal.key(0x03);
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=130");
}

/// Brings the job back, and waits until the shell has given it the terminal.
fn fg(terminal: &mut Terminal) {
    let group = |terminal: &Terminal| rustix::termios::tcgetpgrp(&terminal.keys).unwrap();
    let shell = group(terminal);
    terminal.line("fg");
    eventually("the job has the terminal", || group(terminal) != shell);
}

/// C19: `bg`, then `fg`: the command gets the terminal back and reads from it.
#[test]
fn bg_then_fg() {
    let place = RunFixture::new();
    place.fifo("go");
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo run''ning; read x < go; read y; echo got-$y'");
    terminal.expect("running");
    terminal.key(0x1a);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    terminal.line("bg");
    terminal.expect("ready> ");
    // A command that reads before it has the terminal stops again: the shell does not know, and
    // `fg` does not help.
    fg(&mut terminal);
    place.say("go");
    terminal.line("word");
    terminal.expect("got-word");
    terminal.expect("ready> ");
}

/// C19: a tenure that was started in the background leaves the terminal to the shell.
#[test]
fn in_the_background_from_the_start() {
    let place = RunFixture::new();
    place.fifo("go");
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'read x < go; echo d''one' &");
    terminal.expect("ready> ");
    terminal.line("set -- $(cat /proc/$$/stat); test $5 = $8 && echo still''mine");
    terminal.expect("stillmine");
    place.say("go");
    terminal.expect("done");
}

/// C19: a pipeline of two tenures in the foreground works: neither stops the other.
#[test]
fn a_pipeline_in_the_foreground() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- echo pi''ped | $T run g -- sed s/^/got-/");
    terminal.expect("got-piped");
    terminal.expect("ready> ");
}

/// C4 (keeper and process group), C19: the terminal hangs up: the command gets SIGHUP, and no
/// process is left.
#[test]
fn hanging_up_ends_the_command() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo $$ > pids; echo run''ning; exec sleep 1000'");
    terminal.expect("running");
    let child = place.pids("pids")[0];
    drop(terminal);
    eventually("the command is gone", || !is_alive(child));
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
}

/// C19: a pager in the same pipeline reads its keys from the terminal while the command runs.
#[test]
fn a_pager_in_a_pipeline_reads_the_keys() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    // The pager asks for a key when the command runs, and the pipe is full meanwhile.
    terminal.line(
        "$T run f -- seq 100000 | sh -c 'read one; echo pa''ging; read x < /dev/tty; tail -n 1; echo got-$x'",
    );
    terminal.expect("paging");
    terminal.line("word");
    terminal.expect("100000");
    terminal.expect("got-word");
    terminal.expect("ready> ");
}

/// C19: a password prompt works when the standard descriptors are redirected.
#[test]
fn a_prompt_on_the_terminal_works_behind_redirections() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line(
        "$T run f -- sh -c 'echo pass''word? > /dev/tty; read x < /dev/tty; echo got-$x' < /dev/null > log 2>&1",
    );
    terminal.expect("password?");
    terminal.line("word");
    terminal.expect("ready> ");
    assert_eq!(
        std::fs::read_to_string(place.file("log")).unwrap(),
        "got-word\n"
    );
}

/// C19: Ctrl-C ends a command with redirected descriptors, and a stopped one, too.
#[test]
fn control_c_works_behind_redirections() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line(
        "$T run f -- sh -c 'echo run''ning > /dev/tty; exec sleep 1000' < /dev/null > log 2>&1",
    );
    terminal.expect("running");
    terminal.key(0x03);
    terminal.expect("ready> ");
    terminal.line("echo code=$?");
    terminal.expect("code=130");
    assert!(place.is_free());
}

/// C19: Ctrl-C reaches the command once, though tenure is in the same group.
#[test]
fn control_c_arrives_once() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    // The second INT would end it with 9. Both would arrive before the USR1 that follows.
    let script = "trap 'exit 9' INT; trap 'exit 5' USR1; echo a''gain > /dev/tty; while :; do sleep 0.01; done";
    std::fs::write(
        place.file("twice"),
        format!("trap \"{script}\" INT; echo run''ning > /dev/tty; while :; do sleep 0.01; done\n"),
    )
    .unwrap();
    terminal.line(
        "$T run f -- sh -c 'echo $PPID > pids; exec bash twice' < /dev/null > log; echo code=$?",
    );
    terminal.expect("running");
    terminal.key(0x03);
    terminal.expect("again");
    let supervisor = place.pids("pids")[0];
    signal("USR1", parent(supervisor));
    terminal.expect("code=5");
}

/// The parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    fields.split(' ').nth(1).unwrap().parse().unwrap()
}

/// C19: Ctrl-C ends a script that runs tenure, as it does without tenure.
#[test]
fn control_c_ends_a_script() {
    let place = RunFixture::new();
    std::fs::write(
        place.file("script"),
        "for i in 1 2; do \"$T\" run f -- sh -c 'echo run''ning; exec sleep 1000'; echo af''ter; done\n",
    )
    .unwrap();
    let mut terminal = Terminal::open(&place);
    terminal.line("bash script; echo code=$?");
    terminal.expect("running");
    terminal.key(0x03);
    terminal.line("echo the''end");
    let screen = terminal.expect("theend");
    assert!(!screen.contains("after"), "{screen}");
    assert!(place.is_free());
}

/// C19: Ctrl-Z and `fg` work in a pipeline.
#[test]
fn control_z_in_a_pipeline() {
    let place = RunFixture::new();
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c 'echo run''ning > /dev/tty; read x; echo got-$x' | cat");
    terminal.expect("running");
    terminal.key(0x1a);
    terminal.expect("Stopped");
    terminal.expect("ready> ");
    assert!(
        !place.is_free(),
        "the lock is held while the command is stopped"
    );
    fg(&mut terminal);
    terminal.line("word");
    terminal.expect("got-word");
    terminal.expect("ready> ");
}

/// C4 (keeper and process group): in a pipeline, too, a background process of the command keeps the
/// lock.
#[test]
fn the_group_keeps_the_lock_in_a_pipeline() {
    let place = RunFixture::new();
    place.fifo("go");
    let mut terminal = Terminal::open(&place);
    terminal.line("$T run f -- sh -c '(read x < go) & echo ba''ck; exit 0' < /dev/null | cat &");
    terminal.expect("back");
    assert!(!place.is_free(), "a process of the command still runs");
    place.say("go");
    assert_eq!(place.code(&["-w", "60s", "f", "--", "true"]), Some(0));
}
