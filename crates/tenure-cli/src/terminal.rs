//! What the terminal can show: colour and width.
//!
//! Only the 16 basic colours are used, which every theme chooses for its own background. A meaning is
//! never in the colour alone.

use std::fmt::Display;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The choice of this process. Set once, before the first output.
static CHOICE: AtomicU8 = AtomicU8::new(0);

pub(crate) fn choose(choice: ColorChoice) {
    CHOICE.store(choice as u8, Ordering::Relaxed);
}

/// Returns whether output to this stream is coloured.
pub(crate) fn has_color(stream: impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match CHOICE.load(Ordering::Relaxed) {
        choice if choice == ColorChoice::Always as u8 => true,
        choice if choice == ColorChoice::Never as u8 => false,
        _ => {
            let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
            stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb
        }
    }
}

/// Returns the number of columns of a terminal; `None` for files and pipes, which have no limit.
pub(crate) fn width(stream: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    // A terminal that does not know its size says zero.
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// The meaning of a coloured text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Headings.
    Strong,
    /// Free, alive.
    Good,
    /// Unknown, or soon over.
    Caution,
    /// Dead, deadlock.
    Bad,
    /// Details that most readers skip.
    Quiet,
}

impl Tone {
    pub(crate) fn style(self) -> Style {
        let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
        match self {
            Tone::Plain => Style::new(),
            Tone::Strong => Style::new().bold(),
            Tone::Good => color(AnsiColor::Green),
            Tone::Caution => color(AnsiColor::Yellow),
            Tone::Bad => color(AnsiColor::Red).bold(),
            Tone::Quiet => Style::new().dimmed(),
        }
    }

    /// Returns the text, coloured if `colored`.
    pub(crate) fn paint(self, text: impl Display, colored: bool) -> String {
        match colored && self != Tone::Plain {
            true => format!("{}{text}{:#}", self.style(), self.style()),
            false => text.to_string(),
        }
    }
}

/// Shortens a text to this many characters by cutting its middle: the ends of paths differ.
pub(crate) fn cut_middle(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    // The end is more telling than the beginning: paths of one list often begin alike.
    let back = kept - kept / 3;
    let front: String = text.chars().take(kept - back).collect();
    let end: String = text.chars().skip(length - back).collect();
    format!("{front}…{end}")
}

/// Shortens a text to this many characters by cutting its end.
pub(crate) fn cut_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let start: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", start.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle_or_their_end() {
        let path = "tenant:/acme/projects/42/files/report.pdf";
        assert_eq!(cut_middle(path, 80), path);
        assert_eq!(cut_middle(path, 20), "tenant…es/report.pdf");
        assert_eq!(cut_middle(path, 20).chars().count(), 20);
        assert_eq!(cut_end("worker-1 (pid 7 on atlas)", 10), "worker-1…");
        assert_eq!(cut_middle("ä", 0), "…");
    }

    #[test]
    fn color_is_only_added_where_it_is_shown() {
        assert_eq!(Tone::Bad.paint("dead", false), "dead");
        let colored = Tone::Bad.paint("dead", true);
        assert!(
            colored.starts_with("\u{1b}[1m") && colored.contains("dead"),
            "{colored:?}"
        );
        assert!(colored.ends_with("\u{1b}[0m"), "{colored:?}");
    }
}
