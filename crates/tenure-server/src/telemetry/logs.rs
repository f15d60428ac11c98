//! Logging: one event per line, to standard output and, if configured, to a file.
//!
//! `RUST_LOG` wins over `log_level`. Events of the target `audit` (actions on the locks of other
//! owners) are written at every level, unless `RUST_LOG` or `log_level` mentions `audit` itself.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::config::{LogConfig, LogFormat};

/// The reason why logging cannot start. The daemon does not start then.
#[derive(Debug, Error)]
pub enum LogError {
    /// The filter cannot be parsed.
    #[error(
        "{key} = {filter:?} is not a valid log filter: use for example info or tenure_server=debug"
    )]
    Filter {
        /// `RUST_LOG` or `log_level`.
        key: &'static str,
        /// The filter.
        filter: String,
        /// The cause.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The file cannot be written.
    #[error("cannot append to the log file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A global logger is already installed in this process.
    #[error("logging is already set up in this process")]
    Twice,
}

/// The log file. After it was moved away, [`LogFile::reopen`] makes a new one under its name.
#[derive(Clone)]
pub struct LogFile {
    path: PathBuf,
    current: Arc<RwLock<Arc<File>>>,
}

impl LogFile {
    fn open(path: &Path) -> Result<LogFile, LogError> {
        let file = append_to(path)?;
        Ok(LogFile {
            path: path.to_owned(),
            current: Arc::new(RwLock::new(Arc::new(file))),
        })
    }

    /// Opens the file under its name again. On an error the earlier file stays in use.
    pub fn reopen(&self) -> Result<(), LogError> {
        let file = Arc::new(append_to(&self.path)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = Arc<File>;

    fn make_writer(&'a self) -> Arc<File> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn append_to(path: &Path) -> Result<File, LogError> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640);
    options.open(path).map_err(|source| LogError::File {
        path: path.to_owned(),
        source,
    })
}

/// Opens the log file again at every SIGHUP. Also without a log file SIGHUP must not end the daemon
/// from its start on: it asks for a reload.
pub fn reopen_at_hangup(file: Option<LogFile>) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = signal(SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            let Some(file) = &file else { continue };
            match file.reopen() {
                Ok(()) => {
                    tracing::info!(path = %file.path.display(), "the log file was opened again")
                }
                Err(error) => tracing::error!(%error, "the earlier log file stays in use"),
            }
        }
    })
}

/// Installs the logger of the process. Returns its file, if there is one.
pub fn begin(config: &LogConfig, rust_log: Option<&str>) -> Result<Option<LogFile>, LogError> {
    let filter = filter(config, rust_log)?;
    let terminal = std::io::stdout().is_terminal();
    let json = match config.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !terminal,
    };
    let mut layers = vec![layer(std::io::stdout, json, terminal)];
    let file = config.file.as_deref().map(LogFile::open).transpose()?;
    if let Some(file) = file.clone() {
        let json = config.format != LogFormat::Text;
        layers.push(layer(file, json, false));
    }
    registry()
        .with(layers.with_filter(filter))
        .try_init()
        .map_err(|_| LogError::Twice)?;
    Ok(file)
}

fn filter(config: &LogConfig, rust_log: Option<&str>) -> Result<Targets, LogError> {
    let (key, wanted) = match rust_log.filter(|text| !text.is_empty()) {
        Some(text) => ("RUST_LOG", text),
        None => ("log_level", config.level.as_str()),
    };
    let mut text = wanted.to_owned();
    if !wanted.contains("audit") {
        text.push_str(",audit=info");
    }
    text.parse().map_err(|source| LogError::Filter {
        key,
        filter: wanted.to_owned(),
        source,
    })
}

fn layer<S, W>(writer: W, json: bool, colours: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer).with_ansi(colours);
    if json {
        lines.json().flatten_event(true).boxed()
    } else {
        lines.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(level: &str, rust_log: Option<&str>) -> Result<String, LogError> {
        let config = LogConfig {
            level: level.into(),
            file: None,
            format: LogFormat::Auto,
        };
        filter(&config, rust_log).map(|filter| filter.to_string())
    }

    #[test]
    fn the_environment_wins_and_the_audit_trail_stays() {
        assert_eq!(filtered("info", None).unwrap(), "audit=info,info");
        assert_eq!(filtered("info", Some("error")).unwrap(), "audit=info,error");
        assert_eq!(filtered("info", Some("")).unwrap(), "audit=info,info");
        assert_eq!(
            filtered("info", Some("error,audit=off")).unwrap(),
            "audit=off,error"
        );
    }

    #[test]
    fn a_filter_that_means_nothing_is_named() {
        let error = filtered("no=such=level", None).unwrap_err().to_string();
        assert!(
            error.contains("log_level") && error.contains("no=such=level"),
            "{error}"
        );
    }
}
