//! `tenure top`: live view of holders and waiters.

use std::cmp::Reverse;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Padding, Paragraph, Row, Table, TableState, Wrap};
use tenure::{Address, LockState};
use tenure_files::internal::block_on;

use super::ls::ListScope;
use super::why::WhyView;
use crate::duration;
use crate::lock_table::{self, LockRow};
use crate::lock_tree;
use crate::options::InspectOptions;
use crate::output::{self, CommandFailure};
use crate::terminal::{self, Tone};

/// Show held locks and their waiters in a live terminal view.
///
/// Keys: up and down (or j and k) select a lock, Enter explains it, / filters, s changes the order, t shows a
/// tree, a asks the holder to release it, r refreshes, ? shows help, q quits.
///
/// Examples:
///   tenure top
///   tenure top tenant:/acme
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Top {
    /// Refresh interval.
    #[arg(long, value_name = "DUR", default_value = "1s", value_parser = duration::parse)]
    every: Duration,
    #[command(flatten)]
    inspect_options: InspectOptions,
    /// The address to list, as in `tenure ls`.
    #[arg(value_name = "WHERE")]
    place: Option<String>,
}

const HELP: &str = "\
up, down, j, k   select a lock
Enter            explain the selected lock (tenure why)
/                show only rows that contain a text
s                order by address, time held, lease left, waiters
t                tree of paths
a                ask the holder to release the lock
r                refresh now
?                this help
q, Esc           close, quit";

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RowOrder {
    #[default]
    Address,
    Since,
    Lease,
    Waiting,
}

impl RowOrder {
    fn next(self) -> RowOrder {
        match self {
            RowOrder::Address => RowOrder::Since,
            RowOrder::Since => RowOrder::Lease,
            RowOrder::Lease => RowOrder::Waiting,
            RowOrder::Waiting => RowOrder::Address,
        }
    }

    fn name(self) -> &'static str {
        match self {
            RowOrder::Address => "address",
            RowOrder::Since => "time held",
            RowOrder::Lease => "lease left",
            RowOrder::Waiting => "waiters",
        }
    }
}

/// What is in front of the list.
#[derive(Debug, Default)]
enum Front {
    #[default]
    List,
    /// The text of the filter is being typed.
    Filter,
    Help,
    Why(String),
    ConfirmAsk(Address),
}

/// The state of the screen.
#[derive(Default)]
struct TopView {
    states: Vec<LockState>,
    selected: TableState,
    filter: String,
    order: RowOrder,
    is_tree: bool,
    front: Front,
    is_colored: bool,
    /// The result of the last action, or the last error.
    message: String,
}

/// What a key asks the caller to do.
#[derive(Debug, PartialEq, Eq)]
enum KeyAction {
    None,
    Quit,
    Refresh,
    Why(Address),
    Ask(Address),
}

impl Top {
    pub(crate) fn run(self) -> ExitCode {
        output::end(self.show())
    }

    fn show(&self) -> Result<(), CommandFailure> {
        if !output::is_terminal(std::io::stdout()) || !output::is_terminal(std::io::stdin()) {
            return Err(CommandFailure::usage(
                "`tenure top` needs a terminal; without one, use `tenure ls` or `tenure watch`",
            ));
        }
        let scope = ListScope::new(self.place.as_deref(), &self.inspect_options)?;
        let mut view = TopView {
            is_colored: terminal::has_color(std::io::stdout()),
            ..TopView::default()
        };
        view.look(&scope);
        // `try_init` also restores the terminal on a panic.
        let mut terminal = ratatui::try_init()?;
        let result = self.keep_showing(&mut terminal, &scope, &mut view);
        ratatui::restore();
        result
    }

    fn keep_showing(
        &self,
        terminal: &mut ratatui::DefaultTerminal,
        scope: &ListScope,
        view: &mut TopView,
    ) -> Result<(), CommandFailure> {
        let mut next_look = Instant::now() + self.every;
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            let left = next_look.saturating_duration_since(Instant::now());
            if event::poll(left)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
            {
                let is_interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                match if is_interrupt {
                    KeyAction::Quit
                } else {
                    view.press(key.code)
                } {
                    KeyAction::None => {}
                    KeyAction::Quit => return Ok(()),
                    KeyAction::Refresh => next_look = Instant::now(),
                    KeyAction::Why(place) => view.explain(scope, &place),
                    KeyAction::Ask(place) => view.ask(scope, &place),
                }
            }
            if Instant::now() >= next_look {
                view.look(scope);
                next_look = Instant::now() + self.every;
            }
        }
    }
}

impl TopView {
    fn look(&mut self, scope: &ListScope) {
        match scope.list() {
            Ok(states) => self.states = states,
            Err(failed) => self.message = failed.text,
        }
        self.keep_selection();
    }

    fn keep_selection(&mut self) {
        let rows = self.rows().len();
        match self.selected.selected() {
            _ if rows == 0 => self.selected.select(None),
            None => self.selected.select(Some(0)),
            Some(at) => self.selected.select(Some(at.min(rows - 1))),
        }
    }

    /// Returns the rows that are shown, in their order.
    fn rows(&self) -> Vec<LockRow> {
        let mut rows = lock_table::rows(&self.states);
        if !self.filter.is_empty() {
            let wanted = self.filter.to_lowercase();
            rows.retain(|row| {
                row.cells
                    .iter()
                    .any(|cell| cell.to_lowercase().contains(&wanted))
            });
        }
        if self.is_tree {
            return lock_tree::rows(&self.states, rows);
        }
        let state = |row: &LockRow| self.states.get(row.state);
        let first = |row: &LockRow| state(row).and_then(|state| state.holders.first());
        match self.order {
            RowOrder::Address => {}
            RowOrder::Since => {
                rows.sort_by_key(|row| Reverse(first(row).and_then(|hold| hold.held_for)));
            }
            RowOrder::Lease => {
                let left = |row: &LockRow| first(row).and_then(|hold| hold.lease_left);
                rows.sort_by_key(|row| left(row).unwrap_or(Duration::MAX));
            }
            RowOrder::Waiting => {
                let waiting = |row: &LockRow| state(row).map(|state| state.known_waiters().len());
                rows.sort_by_key(|row| Reverse(waiting(row)));
            }
        }
        rows
    }

    /// Returns the lock of the selected row.
    fn chosen(&self) -> Option<&LockState> {
        let rows = self.rows();
        let row = rows.get(self.selected.selected()?)?;
        self.states.get(row.state)
    }

    /// Handles a key.
    fn press(&mut self, key: KeyCode) -> KeyAction {
        match std::mem::take(&mut self.front) {
            Front::Filter => {
                self.front = Front::Filter;
                match key {
                    KeyCode::Enter => self.front = Front::List,
                    KeyCode::Esc => {
                        self.filter.clear();
                        self.front = Front::List;
                    }
                    KeyCode::Backspace => drop(self.filter.pop()),
                    KeyCode::Char(letter) => self.filter.push(letter),
                    _ => {}
                }
                self.keep_selection();
                KeyAction::None
            }
            // Any key closes a text.
            Front::Help | Front::Why(_) => KeyAction::None,
            Front::ConfirmAsk(place) => match key {
                KeyCode::Char('y' | 'Y') => KeyAction::Ask(place),
                _ => {
                    self.message = "not asked".to_owned();
                    KeyAction::None
                }
            },
            Front::List => self.press_in_list(key),
        }
    }

    fn press_in_list(&mut self, key: KeyCode) -> KeyAction {
        self.message.clear();
        let chosen = self.chosen().map(|state| state.place.clone());
        match key {
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Char('/') => self.front = Front::Filter,
            KeyCode::Char('?') => self.front = Front::Help,
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('t') => self.is_tree = !self.is_tree,
            KeyCode::Char('r') => return KeyAction::Refresh,
            KeyCode::Enter => return chosen.map_or(KeyAction::None, KeyAction::Why),
            KeyCode::Char('a') => {
                if let Some(place) = chosen {
                    self.front = Front::ConfirmAsk(place);
                }
            }
            _ => {}
        }
        self.keep_selection();
        KeyAction::None
    }

    fn explain(&mut self, scope: &ListScope, place: &Address) {
        self.front = match block_on(scope.tenure().inspect(place)) {
            Ok(state) => Front::Why(WhyView::new(scope.tenure(), state).text(false)),
            Err(error) => Front::Why(error.to_string()),
        };
    }

    fn ask(&mut self, scope: &ListScope, place: &Address) {
        self.message = match block_on(scope.tenure().ask(place, None)) {
            Ok(asked) if asked.is_empty() => format!("{place} is not held"),
            Ok(asked) => format!("asked {} to release {place}", asked[0].holder),
            Err(error) => error.to_string(),
        };
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let waiters: Vec<Line<'_>> = self.chosen().map_or_else(Vec::new, |state| {
            let lines = lock_table::waiter_lines(state);
            lines.into_iter().map(Line::raw).collect()
        });
        let below = u16::try_from(waiters.len().clamp(1, 8)).unwrap_or(8) + 2;
        let [locks, line, foot] = Layout::vertical([
            Constraint::Min(3),
            Constraint::Length(below),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let rows = self.rows();
        let mut title = format!(" tenure: {} held ", rows.len());
        if !self.filter.is_empty() {
            title.push_str(&format!("· with {:?} ", self.filter));
        }
        if self.order != RowOrder::Address && !self.is_tree {
            title.push_str(&format!("· by {} ", self.order.name()));
        }
        let widths = lock_table::widths(&rows, Some(usize::from(locks.width.saturating_sub(2))));
        let columns =
            widths.map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)));
        let shown = rows.iter().map(|row| {
            let mut cells = lock_table::fit(row, &widths).map(Cell::from);
            if self.is_colored {
                let lease = std::mem::take(&mut cells[4]);
                cells[4] = lease.style(color(row.tone));
            }
            Row::new(cells)
        });
        let list = Table::new(shown, columns)
            .column_spacing(2)
            .header(Row::new(lock_table::HEADINGS).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(list, locks, &mut self.selected);
        let waiting =
            Paragraph::new(Text::from(waiters)).block(Block::bordered().title(" waiting "));
        frame.render_widget(waiting, line);
        frame.render_widget(Paragraph::new(self.foot()), foot);
        match &self.front {
            Front::Help => pop_up(frame, " keys ", HELP),
            Front::Why(text) => pop_up(frame, " why ", text),
            Front::ConfirmAsk(place) => {
                let holder = self.chosen().and_then(|state| state.holders.first());
                let holder = holder.map_or_else(String::new, |hold| hold.holder.to_string());
                let question =
                    format!("Ask {holder}\nto release {place}?\n\ny: ask   any other key: do not");
                pop_up(frame, " ask ", &question);
            }
            Front::List | Front::Filter => {}
        }
    }

    fn foot(&self) -> String {
        match &self.front {
            Front::Filter => format!("/{}▏   Enter keeps the filter, Esc clears it", self.filter),
            _ if self.message.is_empty() => {
                "↑↓ select  Enter why  / filter  s sort  t tree  a ask  ? help  q quit".to_owned()
            }
            _ => self.message.clone(),
        }
    }
}

fn color(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Caution => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        Tone::Quiet => Style::new().add_modifier(Modifier::DIM),
    }
}

/// Draws a text in the middle of the screen.
fn pop_up(frame: &mut Frame<'_>, title: &str, text: &str) {
    let screen = frame.area();
    let longest = text
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or(0);
    let width = u16::try_from(longest + 4)
        .unwrap_or(u16::MAX)
        .min(screen.width);
    let inside = usize::from(width.saturating_sub(4)).max(1);
    let lines: usize = text
        .lines()
        .map(|line| line.chars().count().div_ceil(inside).max(1))
        .sum();
    let height = u16::try_from(lines + 2)
        .unwrap_or(u16::MAX)
        .min(screen.height);
    let area = Rect {
        x: (screen.width - width) / 2,
        y: (screen.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let block = Block::bordered()
        .title(title)
        .padding(Padding::horizontal(1));
    let text = Paragraph::new(text).wrap(Wrap { trim: false }).block(block);
    frame.render_widget(text, area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tenure::{
        Blocker, BlockerKind, Fence, HoldId, Holder, HolderLiveness, Mode, Permits, QueuedWaiter,
        Verdict,
    };

    fn hold(
        place: &Address,
        name: &str,
        purpose: &str,
        mode: Mode,
        held: u64,
        left: Option<u64>,
    ) -> Blocker {
        Blocker {
            place: place.clone(),
            holder: Holder {
                name: name.to_owned(),
                host: "atlas".to_owned(),
                pid: Some(4711),
                purpose: purpose.to_owned(),
                ..Holder::default()
            },
            standing: BlockerKind::Holds,
            mode,
            held_for: Some(Duration::from_secs(held)),
            lease_left: left.map(Duration::from_secs),
            fence: Fence::new(7),
            verdict: Verdict {
                life: HolderLiveness::Alive,
                because: "its lease has not run out".to_owned(),
            },
            id: Some(HoldId::new(format!("{name}@7"))),
        }
    }

    /// Locks of every kind, with fixed times.
    fn states() -> Vec<LockState> {
        let state = |place: &str| LockState {
            place: place.parse().unwrap(),
            free: false,
            holders: Vec::new(),
            waiters: Some(Vec::new()),
            permits: None,
            fence: None,
            rule: None,
            deadlock: Vec::new(),
            notes: Vec::new(),
            not_a_record: false,
        };
        let mut states = Vec::new();
        for number in [10, 2, 1] {
            let mut one = state(&format!("tenant:/acme/projects/{number}/files/report.pdf"));
            let place = one.place.clone();
            let name = format!("worker-{number}");
            one.holders = vec![hold(
                &place,
                &name,
                "nightly import",
                Mode::Exclusive,
                90 * number,
                Some(25),
            )];
            states.push(one);
        }
        let waiter = QueuedWaiter {
            place: states[1].place.clone(),
            holder: Holder {
                name: "indexer".to_owned(),
                ..Holder::default()
            },
            owner: "indexer-1".to_owned(),
            mode: Mode::Exclusive,
            waited: Some(Duration::from_secs(12)),
        };
        states[1].waiters = Some(vec![waiter]);
        let mut pool = state("gpu:/pool/a");
        pool.permits = Some(Permits { held: 1, of: 3 });
        let permit = Mode::Permit(3.try_into().unwrap());
        pool.holders = vec![hold(&pool.place, "train", "", permit, 7200, Some(3))];
        states.push(pool);
        let mut file = state("sidecar:/var/lib/jobs/nightly");
        file.waiters = None;
        file.holders = vec![hold(&file.place, "", "backup", Mode::Exclusive, 30, None)];
        file.holders[0].verdict.life = HolderLiveness::Dead;
        states.push(file);
        lock_table::sort(&mut states);
        states
    }

    fn view() -> TopView {
        let mut view = TopView {
            states: states(),
            ..TopView::default()
        };
        view.keep_selection();
        view
    }

    fn screen(view: &mut TopView, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 16)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let screen = terminal.backend().to_string();
        let lines = screen.lines().map(|line| line.trim_matches('"').trim_end());
        lines.collect::<Vec<_>>().join("\n") + "\n"
    }

    /// Compares with a kept file. `TENURE_UPDATE_GOLDEN=1` writes it anew; look at the difference.
    fn golden(name: &str, text: &str) {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/golden")
            .join(name);
        if std::env::var_os("TENURE_UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, text).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(text, kept, "{}", file.display());
    }

    #[test]
    fn the_view_fits_three_widths() {
        for width in [60, 80, 200] {
            golden(&format!("top-{width}.txt"), &screen(&mut view(), width));
            let rows = lock_table::rows(&states());
            let table = lock_table::layout(&rows, Some(usize::from(width)), false);
            golden(&format!("ls-{width}.txt"), &(table + "\n"));
            let tree = lock_tree::rows(&states(), rows);
            let table = lock_table::layout(&tree, Some(usize::from(width)), false);
            golden(&format!("ls-tree-{width}.txt"), &(table + "\n"));
        }
    }

    #[test]
    fn color_marks_leases() {
        let rows = lock_table::rows(&states());
        golden(
            "ls-color.txt",
            &(lock_table::layout(&rows, Some(100), true) + "\n"),
        );
    }

    /// An empty view says so, and how to quit.
    #[test]
    fn an_empty_view_is_drawn() {
        let text = screen(&mut TopView::default(), 80);
        assert!(text.contains("tenure: 0 held"), "{text}");
        assert!(text.contains("q quit"), "{text}");
    }

    #[test]
    fn the_filter_keeps_what_contains_it() {
        let mut view = view();
        for key in ['/', 'G', 'P', 'U'] {
            assert_eq!(view.press(KeyCode::Char(key)), KeyAction::None);
        }
        let text = screen(&mut view, 80);
        assert!(
            text.contains("tenure: 1 held") && text.contains("/GPU"),
            "{text}"
        );
        view.press(KeyCode::Enter);
        assert!(screen(&mut view, 80).contains("with \"GPU\""));
        view.press(KeyCode::Esc);
        assert!(screen(&mut view, 80).contains("tenure: 5 held"));
        assert_eq!(view.press(KeyCode::Char('q')), KeyAction::Quit);
    }

    #[test]
    fn rows_are_sorted_by_the_chosen_column() {
        let mut view = view();
        let first = |view: &TopView| view.rows()[0].cells[0].clone();
        assert_eq!(first(&view), "gpu:/pool/a");
        view.press(KeyCode::Char('s'));
        assert_eq!(first(&view), "gpu:/pool/a", "held for the longest time");
        view.press(KeyCode::Char('s'));
        assert_eq!(first(&view), "gpu:/pool/a", "the shortest lease");
        view.press(KeyCode::Char('s'));
        assert_eq!(
            first(&view),
            "tenant:/acme/projects/2/files/report.pdf",
            "a waiter"
        );
    }

    /// C10 (changes to foreign locks): a holder is asked only after a confirmation.
    #[test]
    fn asking_needs_a_confirmation() {
        let mut view = view();
        let place = view.chosen().unwrap().place.clone();
        assert_eq!(view.press(KeyCode::Char('a')), KeyAction::None);
        let text = screen(&mut view, 80);
        assert!(text.contains("y: ask") && text.contains("train"), "{text}");
        assert_eq!(view.press(KeyCode::Char('n')), KeyAction::None);
        view.press(KeyCode::Char('a'));
        assert_eq!(
            view.press(KeyCode::Char('y')),
            KeyAction::Ask(place.clone())
        );
        assert_eq!(view.press(KeyCode::Enter), KeyAction::Why(place));
    }

    #[test]
    fn help_lists_the_keys() {
        let mut view = view();
        view.press(KeyCode::Char('?'));
        golden("top-help.txt", &screen(&mut view, 80));
        view.press(KeyCode::Char('x'));
        assert!(!screen(&mut view, 80).contains("this help"));
    }
}
