//! Logging: one event per line, to standard output and, if configured, to a file.
//!
//! `RUST_LOG` wins over `log_level`. Events of the target `audit` (actions on the locks of other
//! owners) are written at every level, unless `RUST_LOG` or `log_level` mentions `audit` itself.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
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

/// Installs the logger of the process.
pub fn begin(config: &LogConfig, rust_log: Option<&str>) -> Result<(), LogError> {
    let filter = filter(config, rust_log)?;
    let terminal = std::io::stdout().is_terminal();
    let json = match config.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !terminal,
    };
    let mut layers = vec![layer(std::io::stdout, json, terminal)];
    if let Some(path) = &config.file {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(path)
            .map_err(|source| LogError::File {
                path: path.clone(),
                source,
            })?;
        let json = config.format != LogFormat::Text;
        layers.push(layer(Arc::new(file), json, false));
    }
    registry()
        .with(layers.with_filter(filter))
        .try_init()
        .map_err(|_| LogError::Twice)
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
