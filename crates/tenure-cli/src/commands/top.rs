//! `tenure top`: live view of holders and waiters.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};
use tenure::LockState;
use tenure_files::internal::block_on;

use super::ls::ListScope;
use crate::duration;
use crate::lock_table;
use crate::options::InspectOptions;
use crate::output::{self, CommandFailure};

/// Show held locks and their waiters in a live terminal view.
///
/// Keys: up and down (or j and k) select a lock, a asks its holder to release it, r refreshes, q quits.
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

/// The state of the screen.
#[derive(Default)]
struct TopView {
    states: Vec<LockState>,
    selected: TableState,
    /// The result of the last action, or the last error.
    message: String,
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
        let mut view = TopView::default();
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
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                        return Ok(());
                    }
                    KeyCode::Down | KeyCode::Char('j') => view.selected.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => view.selected.select_previous(),
                    KeyCode::Char('a') => view.ask(scope),
                    KeyCode::Char('r') => next_look = Instant::now(),
                    _ => {}
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
        let rows = lock_table::rows(&self.states).len();
        match self.selected.selected() {
            _ if rows == 0 => self.selected.select(None),
            None => self.selected.select(Some(0)),
            Some(at) => self.selected.select(Some(at.min(rows - 1))),
        }
    }

    /// Returns the lock of the selected row.
    fn chosen(&self) -> Option<&LockState> {
        let rows = lock_table::rows(&self.states);
        let row = rows.get(self.selected.selected()?)?;
        self.states.get(row.state)
    }

    fn ask(&mut self, scope: &ListScope) {
        let Some(state) = self.chosen() else { return };
        let place = state.place.clone();
        self.message = match block_on(scope.tenure().ask(&place, None)) {
            Ok(asked) if asked.is_empty() => format!("{place} is not held"),
            Ok(asked) => format!("asked {} to release {place}", asked[0].holder),
            Err(error) => error.to_string(),
        };
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let waiters = self.chosen().map_or_else(Vec::new, |state| {
            lock_table::waiter_lines(state)
                .into_iter()
                .map(Line::raw)
                .collect()
        });
        let below = u16::try_from(waiters.len().clamp(1, 8)).unwrap_or(8) + 2;
        let [locks, line, foot] = Layout::vertical([
            Constraint::Min(3),
            Constraint::Length(below),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let rows = lock_table::rows(&self.states);
        let title = format!(" tenure: {} held ", rows.len());
        let widths = [
            Constraint::Fill(3),
            Constraint::Length(11),
            Constraint::Fill(3),
            Constraint::Length(6),
            Constraint::Length(8),
            Constraint::Length(7),
        ];
        let list = Table::new(rows.into_iter().map(|row| Row::new(row.cells)), widths)
            .header(Row::new(lock_table::HEADINGS).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title(title));
        frame.render_stateful_widget(list, locks, &mut self.selected);
        let waiting =
            Paragraph::new(Text::from(waiters)).block(Block::bordered().title(" waiting "));
        frame.render_widget(waiting, line);
        let keys = "up/down select   a ask for release   r refresh   q quit";
        let foot_text = if self.message.is_empty() {
            keys
        } else {
            &self.message
        };
        frame.render_widget(Paragraph::new(foot_text), foot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// An empty view says so, and how to quit.
    #[test]
    fn an_empty_view_is_drawn() {
        let mut terminal = Terminal::new(TestBackend::new(70, 10)).unwrap();
        let mut view = TopView::default();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let screen = terminal.backend().to_string();
        assert!(screen.contains("tenure: 0 held"), "{screen}");
        assert!(screen.contains("q quit"), "{screen}");
    }

    /// The selected row shows its waiters in order.
    #[test]
    fn holders_and_waiters_are_drawn() {
        let held = block_on(async {
            let tenure = tenure::Tenure::default();
            let guard = tenure
                .lock("mem:top/a")?
                .purpose("reindex")
                .acquire()
                .await?;
            let states = tenure.list("mem:top").await?;
            guard.release().await?;
            Ok::<_, tenure::Error>(states)
        });
        let mut view = TopView {
            states: held.unwrap(),
            selected: TableState::new().with_selected(Some(0)),
            message: String::new(),
        };
        let mut terminal = Terminal::new(TestBackend::new(200, 10)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let screen = terminal.backend().to_string();
        assert!(screen.contains("tenure: 1 held"), "{screen}");
        assert!(screen.contains("mem:top/a"), "{screen}");
        assert!(screen.contains("reindex"), "{screen}");
    }
}
