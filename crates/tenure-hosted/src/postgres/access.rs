//! Where the database is and how to log in: the address and the variables of libpq.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::tls::TlsMode;

/// `postgres://[user@][host[:port][,host[:port]]]/database`. What is missing comes from `PGHOST`,
/// `PGPORT`, `PGUSER` and `PGDATABASE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresAddress {
    user: Option<String>,
    hosts: String,
    database: String,
}

/// Why an address of a database is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PostgresAddressError(String);

impl FromStr for PostgresAddress {
    type Err = PostgresAddressError;

    fn from_str(text: &str) -> Result<PostgresAddress, PostgresAddressError> {
        let bad = |what: &str| Err(PostgresAddressError(what.to_owned()));
        let rest = text
            .strip_prefix("postgres://")
            .or_else(|| text.strip_prefix("postgresql://"));
        let Some(rest) = rest else {
            return bad("does not begin with postgres://");
        };
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match place.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, place),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return bad(
                "has a password in it, which others on this machine can read: put it into a file \
                 that PGPASSFILE names, or into PGPASSWORD",
            );
        }
        if database.contains(['/', '?', '#']) {
            return bad(
                "has more than a database in it: settings such as PGSSLMODE are variables of the \
                 environment",
            );
        }
        Ok(PostgresAddress {
            user: user.filter(|user| !user.is_empty()).map(str::to_owned),
            hosts: hosts.to_owned(),
            database: database.to_owned(),
        })
    }
}

impl fmt::Display for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}", self.hosts, self.database)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl PostgresAddress {
    /// The settings of a connection, and how it uses TLS.
    pub(super) fn config(&self) -> Result<(Config, TlsMode), PostgresAddressError> {
        let bad = |what: String| PostgresAddressError(format!("{self} {what}"));
        let mut config = Config::new();
        let default_port = match variable("PGPORT") {
            Some(port) => port.parse().map_err(|_| {
                PostgresAddressError(format!("PGPORT is {port}: it must be a number"))
            })?,
            None => 5432,
        };
        let hosts = match self.hosts.is_empty() {
            true => variable("PGHOST").unwrap_or_else(|| "/var/run/postgresql".to_owned()),
            false => self.hosts.clone(),
        };
        let mut places = Vec::new();
        for host in hosts.split(',') {
            let (host, port) = split_port(host, default_port)
                .ok_or_else(|| bad(format!("has no port after the colon: {host}")))?;
            config.host(&host);
            config.port(port);
            places.push((host, port));
        }
        let user = self
            .user
            .clone()
            .or_else(|| variable("PGUSER"))
            .or_else(|| variable("USER"))
            .unwrap_or_else(|| "postgres".to_owned());
        let database = match self.database.is_empty() {
            true => variable("PGDATABASE").unwrap_or_else(|| user.clone()),
            false => self.database.clone(),
        };
        config.user(&user);
        config.dbname(&database);
        config.application_name("tenure");
        config.connect_timeout(super::CONNECT);
        // With several hosts: the one that can be written to.
        if places.len() > 1 {
            config.target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite);
        }
        let password = variable("PGPASSWORD").or_else(|| {
            places
                .iter()
                .find_map(|(host, port)| password_of(host, *port, &database, &user))
        });
        if let Some(password) = password {
            config.password(password);
        }
        let mode = TlsMode::from_env().map_err(PostgresAddressError)?;
        config.ssl_mode(match mode {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::Verify { .. } => SslMode::Require,
        });
        Ok((config, mode))
    }
}

fn split_port(host: &str, default: u16) -> Option<(String, u16)> {
    if host.starts_with('/') {
        return Some((host.to_owned(), default));
    }
    if let Some(rest) = host.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None => default,
        };
        return Some((host.to_owned(), port));
    }
    match host.rsplit_once(':') {
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
        None => Some((host.to_owned(), default)),
    }
}

/// The password of the first line that fits, from `PGPASSFILE` or `~/.pgpass`.
fn password_of(host: &str, port: u16, database: &str, user: &str) -> Option<String> {
    let file = variable("PGPASSFILE")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".pgpass")))?;
    let text = std::fs::read_to_string(file).ok()?;
    let host = match host.starts_with('/') {
        true => "localhost",
        false => host,
    };
    find_password(&text, [host, &port.to_string(), database, user])
}

/// Lines are `host:port:database:user:password`; `*` fits everything, `\` escapes `:` and `\`.
fn find_password(text: &str, wanted: [&str; 4]) -> Option<String> {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = vec![String::new()];
        let mut letters = line.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' => {
                    let field = fields.last_mut();
                    if let (Some(field), Some(next)) = (field, letters.next()) {
                        field.push(next);
                    }
                }
                ':' if fields.len() < 5 => fields.push(String::new()),
                letter => {
                    if let Some(field) = fields.last_mut() {
                        field.push(letter);
                    }
                }
            }
        }
        let fits = |(field, wanted): (&String, &&str)| field == "*" || field == *wanted;
        if fields.len() == 5 && fields.iter().zip(&wanted).all(fits) {
            return fields.pop();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_was_written() {
        for text in [
            "postgres://h/db",
            "postgres://amy@h:5433,i/db",
            "postgres:///db",
        ] {
            let address: PostgresAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    /// A password in an address would be in process lists and logs.
    #[test]
    fn a_password_in_an_address_is_refused() {
        let error = "postgres://amy:secret@h/db"
            .parse::<PostgresAddress>()
            .unwrap_err();
        assert!(error.to_string().contains("PGPASSFILE"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# comment\nother:*:*:*:no\nh:5432:db:amy:a\\:b\\\\c\n*:*:*:*:last\n";
        let find = |host| find_password(text, [host, "5432", "db", "amy"]);
        assert_eq!(find("h").as_deref(), Some("a:b\\c"));
        assert_eq!(find("x").as_deref(), Some("last"));
    }
}
