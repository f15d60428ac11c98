//! Raw settings: TOML file and environment, merged and parsed key by key.
//!
//! Every reading method parses one key, records the value in effect for `--print-config`, and
//! collects a [`ConfigMistake`] instead of failing, so that all mistakes are reported at once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use tenure_core::policy::Algorithm;
use toml::Value;

use super::Secret;

/// Variables that are no settings of the daemon: those of clients, and of commands that run under a
/// lock. Numbered ones (`TENURE_FENCE_2`) belong to the second lock of a command.
const VARIABLES_OF_CLIENTS: &[&str] = &[
    "allow_plaintext",
    "ca_file",
    "client_auth_token",
    "client_auth_token_file",
    "client_cert_file",
    "client_key_file",
    "config",
    "fd",
    "fence",
    "held",
    "holds",
    "key_file",
    "lock_path",
    "mode",
    "name",
    "notice_fd",
    "owner",
    "pin",
    "token",
    "url",
    "where",
];

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    /// Not set.
    Default,
    /// The TOML file.
    File,
    /// An environment variable.
    Environment,
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValueOrigin::Default => "default",
            ValueOrigin::File => "file",
            ValueOrigin::Environment => "environment",
        })
    }
}

/// The value of a key in effect. Secrets show only that they are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The key.
    pub key: &'static str,
    /// Its value as TOML.
    pub value: String,
    /// Where the value comes from.
    pub origin: ValueOrigin,
}

/// One mistake in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMistake {
    /// The key.
    pub key: String,
    /// The value as written. Empty if the key is missing.
    pub value: String,
    /// What is wrong, or what is allowed.
    pub problem: String,
    /// What to do. May be empty.
    pub hint: String,
}

impl fmt::Display for ConfigMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if !self.value.is_empty() {
            write!(f, " = {}", self.value)?;
        }
        write!(f, ": {}", self.problem)?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}

/// All mistakes of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The mistakes, in the order in which the keys are read.
    pub mistakes: Vec<ConfigMistake>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration has {} error(s)", self.mistakes.len())?;
        for mistake in &self.mistakes {
            write!(f, "\n  {mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// File and environment, not yet validated.
#[derive(Clone, Debug, Default)]
pub struct RawSettings {
    file: Option<toml::Table>,
    environment: BTreeMap<String, String>,
}

impl RawSettings {
    /// Parses the text of a TOML file, if there is one, and takes the environment variables. Fails
    /// if the text is not TOML.
    pub fn new(
        file: Option<&str>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<RawSettings, ConfigError> {
        let parsed = file
            .map(|text| text.parse::<toml::Table>())
            .transpose()
            .map_err(|error| {
                // The parser's own text quotes the line, which may contain a secret.
                let problem = match (error.span(), file) {
                    (Some(span), Some(text)) => {
                        let (line, column) = position(text, span.start);
                        format!("line {line}, column {column}: {}", error.message())
                    }
                    _ => error.message().to_owned(),
                };
                let mistake = ConfigMistake {
                    key: "the configuration file".into(),
                    value: String::new(),
                    problem,
                    hint: String::new(),
                };
                ConfigError {
                    mistakes: vec![mistake],
                }
            })?;
        // An empty variable counts as unset.
        let environment = environment
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect();
        Ok(RawSettings {
            file: parsed,
            environment,
        })
    }

    fn variable(&self, key: &str) -> Option<&str> {
        let upper = key.to_ascii_uppercase();
        ["TENURE_", "PATHLOCKD_"]
            .iter()
            .find_map(|prefix| self.environment.get(&format!("{prefix}{upper}")))
            .map(String::as_str)
    }
}

/// Result of [`SettingsReader::finish`] without mistakes.
pub(super) struct ReadSettings {
    pub(super) ignored: Vec<String>,
    pub(super) unknown: Vec<String>,
    pub(super) effective: Vec<Effective>,
}

/// Reads keys and collects mistakes.
pub(super) struct SettingsReader {
    settings: RawSettings,
    mistakes: Vec<ConfigMistake>,
    effective: Vec<Effective>,
}

/// A value as found: TOML values are typed, variables are strings.
enum RawValue<'a> {
    Toml(&'a Value),
    Variable(&'a str),
}

impl RawValue<'_> {
    fn origin(&self) -> ValueOrigin {
        match self {
            RawValue::Toml(_) => ValueOrigin::File,
            RawValue::Variable(_) => ValueOrigin::Environment,
        }
    }

    fn shown(&self) -> String {
        match self {
            RawValue::Toml(value) => value.to_string(),
            RawValue::Variable(text) => (*text).to_owned(),
        }
    }
}

impl SettingsReader {
    pub(super) fn new(settings: RawSettings) -> SettingsReader {
        SettingsReader {
            settings,
            mistakes: Vec::new(),
            effective: Vec::new(),
        }
    }

    /// Returns whether a key that was read is set in the file or the environment.
    pub(super) fn is_written(&self, key: &str) -> bool {
        let entry = self.effective.iter().find(|entry| entry.key == key);
        entry.is_some_and(|entry| entry.origin != ValueOrigin::Default)
    }

    /// Replaces the recorded value of a key by the one in effect.
    pub(super) fn show(&mut self, key: &str, value: &str) {
        let entry = self.effective.iter_mut().find(|entry| entry.key == key);
        if let Some(entry) = entry {
            entry.value = value.to_owned();
        }
    }

    pub(super) fn mistake(&mut self, key: &str, value: &str, problem: &str, hint: &str) {
        self.mistakes.push(ConfigMistake {
            key: key.into(),
            value: value.into(),
            problem: problem.into(),
            hint: hint.into(),
        });
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        default: u64,
        allowed: RangeInclusive<u64>,
    ) -> u64 {
        let problem = match (allowed.start(), allowed.end()) {
            (low, &u64::MAX) => format!("must be a whole number of at least {low}"),
            (low, high) => format!("must be a whole number from {low} to {high}"),
        };
        self.read(key, default, &problem, |found| {
            let number = match found {
                RawValue::Toml(value) => value.as_integer().and_then(|n| u64::try_from(n).ok()),
                RawValue::Variable(text) => text.trim().parse().ok(),
            };
            number.filter(|number| allowed.contains(number))
        })
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.read(key, default, "must be true or false", |found| match found {
            RawValue::Toml(value) => value.as_bool(),
            RawValue::Variable(text) => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => Some(true),
                "false" | "0" | "no" | "off" => Some(false),
                _ => None,
            },
        })
    }

    pub(super) fn text(&mut self, key: &'static str, default: &str) -> String {
        let shown = TomlQuoted(default.to_owned());
        self.read(key, shown, "must be a quoted string", |found| {
            text(found).map(TomlQuoted)
        })
        .0
    }

    pub(super) fn optional_text(&mut self, key: &'static str) -> Option<String> {
        Some(self.text(key, "")).filter(|text| !text.is_empty())
    }

    pub(super) fn secret(&mut self, key: &'static str) -> Option<Secret> {
        let value = self.optional_text(key);
        // Keeps the secret out of `--print-config`. `optional_text` has just pushed its entry.
        if let (Some(_), Some(entry)) = (&value, self.effective.last_mut()) {
            entry.value = "\"(secret)\"".into();
        }
        value.map(Secret)
    }

    pub(super) fn address(&mut self, key: &'static str, default: SocketAddr) -> SocketAddr {
        let shown = TomlQuoted(default);
        let problem = "must be an address such as 127.0.0.1:50051 or [::1]:50051";
        self.read(key, shown, problem, |found| {
            text(found)?.parse().ok().map(TomlQuoted)
        })
        .0
    }

    pub(super) fn optional_address(
        &mut self,
        key: &'static str,
        default: &str,
    ) -> Option<SocketAddr> {
        let address = self.text(key, default);
        if address.is_empty() || address == "off" {
            return None;
        }
        let parsed = address.parse().ok();
        if parsed.is_none() {
            self.mistake(
                key,
                &address,
                "must be an address such as 127.0.0.1:8443, or off",
                "",
            );
        }
        parsed
    }

    pub(super) fn list(&mut self, key: &'static str) -> Vec<String> {
        let problem =
            "must be a list of quoted strings (in an environment variable: separated by commas)";
        self.read(key, ListValue(Vec::new()), problem, |found| {
            let items = match found {
                RawValue::Toml(value) => value
                    .as_array()?
                    .iter()
                    .map(|item| item.as_str().map(str::to_owned))
                    .collect::<Option<Vec<_>>>()?,
                RawValue::Variable(text) => {
                    text.split(',').map(|item| item.trim().to_owned()).collect()
                }
            };
            Some(ListValue(
                items.into_iter().filter(|item| !item.is_empty()).collect(),
            ))
        })
        .0
    }

    pub(super) fn algorithm(&mut self, key: &'static str) -> Algorithm {
        let problem = "must be recursive_rw, point_rw, recursive_write, point_write or semaphore";
        let name = self.text(key, "recursive_rw");
        match name.to_ascii_lowercase().replace(['-', ' '], "_").as_str() {
            "recursive_rw" => Algorithm::RecursiveRw,
            "point_rw" => Algorithm::PointRw,
            "recursive_write" => Algorithm::RecursiveWrite,
            "point_write" => Algorithm::PointWrite,
            "semaphore" => Algorithm::Semaphore,
            _ => {
                self.mistake(key, &name, problem, "");
                Algorithm::RecursiveRw
            }
        }
    }

    /// Reads one key: the variable if set, else the file, else the default. On a parse error it
    /// records a mistake and continues with the default.
    fn read<T: fmt::Display>(
        &mut self,
        key: &'static str,
        default: T,
        problem: &str,
        parse: impl Fn(&RawValue<'_>) -> Option<T>,
    ) -> T {
        let found = match self.settings.variable(key) {
            Some(text) => Some(RawValue::Variable(text)),
            None => self
                .settings
                .file
                .as_ref()
                .and_then(|file| file.get(key))
                .map(RawValue::Toml),
        };
        let (value, origin, bad) = match found {
            None => (default, ValueOrigin::Default, None),
            Some(found) => match parse(&found) {
                Some(value) => (value, found.origin(), None),
                None => (default, found.origin(), Some(found.shown())),
            },
        };
        if let Some(shown) = bad {
            let shown = if key.contains("token") {
                "(secret)".to_owned()
            } else {
                shown
            };
            self.mistake(key, &shown, problem, "");
        }
        self.effective.push(Effective {
            key,
            value: value.to_string(),
            origin,
        });
        value
    }

    /// Fails if a key read so far has a mistake. Keys that were not read are not checked.
    pub(super) fn so_far(self) -> Result<(), ConfigError> {
        match self.mistakes {
            mistakes if mistakes.is_empty() => Ok(()),
            mistakes => Err(ConfigError { mistakes }),
        }
    }

    /// Returns a sentence for each variable that looks like a setting and is none.
    fn unknown_variables(&self, without_meaning: &[&str]) -> Vec<String> {
        let keys = || self.effective.iter().map(|entry| entry.key);
        let mut unknown = Vec::new();
        for name in self.settings.environment.keys() {
            let key = ["TENURE_", "PATHLOCKD_"]
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix))
                .map(str::to_ascii_lowercase);
            let Some(key) = key else {
                continue;
            };
            let base = key.trim_end_matches(|c: char| c.is_ascii_digit());
            let base = if base.len() < key.len() {
                base.trim_end_matches('_')
            } else {
                &key
            };
            let is_known = keys().any(|one| one == key)
                || without_meaning.contains(&key.as_str())
                || VARIABLES_OF_CLIENTS.contains(&base);
            if !is_known {
                let near = nearest(&key, keys());
                let near = near.map_or_else(String::new, |near| {
                    format!("; did you mean TENURE_{}?", near.to_ascii_uppercase())
                });
                unknown.push(format!("{name} is not a setting{near}"));
            }
        }
        unknown.sort();
        unknown
    }

    /// Ends reading. A key of the file that was not read must be in `without_meaning`; otherwise it
    /// is a mistake. Variables with unknown names are reported, but are no mistakes: the environment
    /// may have variables of newer releases.
    pub(super) fn finish(mut self, without_meaning: &[&str]) -> Result<ReadSettings, ConfigError> {
        let mut ignored = Vec::new();
        for key in self.settings.file.iter().flat_map(|file| file.keys()) {
            if without_meaning.contains(&key.as_str()) {
                ignored.push(key.clone());
            } else if !self.effective.iter().any(|entry| entry.key == key) {
                let near = nearest(key, self.effective.iter().map(|entry| entry.key));
                self.mistakes.push(ConfigMistake {
                    key: key.clone(),
                    value: String::new(),
                    problem: "unknown key".into(),
                    hint: near.map_or_else(String::new, |near| format!("did you mean {near}?")),
                });
            }
        }
        for key in without_meaning {
            if self.settings.variable(key).is_some() && !ignored.iter().any(|known| known == key) {
                ignored.push((*key).to_owned());
            }
        }
        if self.mistakes.is_empty() {
            Ok(ReadSettings {
                unknown: self.unknown_variables(without_meaning),
                ignored,
                effective: self.effective,
            })
        } else {
            Err(ConfigError {
                mistakes: self.mistakes,
            })
        }
    }
}

fn text(found: &RawValue<'_>) -> Option<String> {
    match found {
        RawValue::Toml(value) => value.as_str().map(str::to_owned),
        RawValue::Variable(text) => Some((*text).to_owned()),
    }
}

/// Displayed as a quoted TOML string.
struct TomlQuoted<T>(T);

impl<T: fmt::Display> fmt::Display for TomlQuoted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::String(self.0.to_string()).fmt(f)
    }
}

struct ListValue(Vec<String>);

impl fmt::Display for ListValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::Array(self.0.iter().cloned().map(Value::String).collect()).fmt(f)
    }
}

/// Returns the line and the column of an offset, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before.matches('\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}

/// Returns the key with the smallest edit distance, if that is at most 3.
fn nearest<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = known.map(|name| (distance(key, name), name)).min()?;
    (distance <= 3).then_some(name)
}

/// Returns the Levenshtein distance: letters to change, add or remove.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // One row of the dynamic-programming table; `diagonal` is the old value of the cell to the
    // left.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
