//! Encoding of commands. One command is one item of a log entry.

use super::value::tags;
use super::{DecodeError, Encode, Reader, Writer};
use crate::command::{
    Acquire, AskRelease, BreakLock, ChangePolicy, ClearPolicy, Command, Domain, Expire, Freeze,
    Hold, Region, Release, ReleaseAll, ReleaseCause, RenewLease, Request, RequestKind, Route,
    Selection, Thaw, WaitMode, Whole, Withdraw,
};

tags!(RequestKind as "lock state" { New = 0, Held = 1 });
tags!(WaitMode as "way of waiting" { Queue = 0, QueueAndAsk = 1, No = 2 });
tags!(ReleaseCause as "cause of a release" { Owner = 0, Killed = 1 });
tags!(ClearPolicy as "clearing" { Waiters = 1, All = 2 });

/// A struct as its fields in order; each field names how it is written.
macro_rules! fields {
    ($type:ident { $($field:ident : $how:ident),+ $(,)? }) => {
        impl Encode for $type {
            fn put(&self, out: &mut Writer) {
                $(fields!(@put out, self.$field, $how);)+
            }
            fn take(input: &mut Reader<'_>) -> Result<$type, DecodeError> {
                Ok($type { $($field: fields!(@take input, $how)),+ })
            }
        }
    };
    (@put $out:ident, $value:expr, one) => { $out.put(&$value) };
    (@put $out:ident, $value:expr, list) => { $out.list(&$value) };
    (@put $out:ident, $value:expr, option) => { $out.option($value.as_ref()) };
    (@take $input:ident, one) => { $input.take()? };
    (@take $input:ident, list) => { $input.list()? };
    (@take $input:ident, option) => { $input.option()? };
}
pub(super) use fields;

fields!(Route {
    namespace: one,
    algorithm: one,
    version: one
});
fields!(Request {
    path: one,
    mode: one,
    state: one,
    permits: option
});
fields!(Hold {
    path: one,
    mode: one
});
fields!(Acquire {
    route: one,
    owner: one,
    ttl: one,
    queue_ttl: one,
    requests: list,
    releases: list,
    fence: option,
    key: option,
    wait: one,
    holder: option,
});
fields!(Whole {
    fingerprint: one,
    asked: option
});
fields!(RenewLease {
    namespace: one,
    owner: one,
    ttl: one
});
fields!(Expire {
    namespace: one,
    owner: one,
    epoch: one
});
fields!(AskRelease { owner: one });
fields!(BreakLock {
    route: one,
    path: one,
    owner: one,
    fence: option
});
fields!(Withdraw {
    namespace: one,
    owner: one,
    waiter: one
});
fields!(Region {
    root: one,
    except: list
});
fields!(Freeze {
    change: one,
    settled: one,
    region: one
});
fields!(ChangePolicy {
    change: one,
    settled: one,
    version: one,
    region: one,
    algorithm: one,
    clear: one,
    floor: option
});
fields!(Thaw { change: one });

impl Encode for Selection {
    fn put(&self, out: &mut Writer) {
        match self {
            Selection::All => out.byte(0),
            Selection::Only(domains) => {
                out.byte(1);
                out.list(domains);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Selection, DecodeError> {
        match input.byte()? {
            0 => Ok(Selection::All),
            1 => Ok(Selection::Only(input.list()?)),
            found => Err(DecodeError::Tag {
                of: "selection",
                found,
            }),
        }
    }
}

impl Encode for Domain {
    fn put(&self, out: &mut Writer) {
        let (tag, name) = match self {
            Domain::Namespace(name) => (0, name),
            Domain::Handler(name) => (1, name),
        };
        out.byte(tag);
        out.put(name);
    }
    fn take(input: &mut Reader<'_>) -> Result<Domain, DecodeError> {
        match input.byte()? {
            0 => Ok(Domain::Namespace(input.take()?)),
            1 => Ok(Domain::Handler(input.take()?)),
            found => Err(DecodeError::Tag {
                of: "domain",
                found,
            }),
        }
    }
}

impl Encode for Command {
    fn put(&self, out: &mut Writer) {
        match self {
            Command::Acquire(acquire) => tagged(out, 1, acquire),
            Command::Release(release) => put_release(out, release),
            Command::ReleaseAll(release) => put_release_all(out, release),
            Command::Renew(renew) => tagged(out, 4, renew),
            Command::Expire(expire) => tagged(out, 5, expire),
            Command::Tick => out.byte(6),
            Command::Ask(ask) => tagged(out, 7, ask),
            Command::Break(hold) => tagged(out, 8, hold),
            Command::Withdraw(withdraw) => tagged(out, 9, withdraw),
            Command::Freeze(freeze) => tagged(out, 10, freeze),
            Command::Change(change) => tagged(out, 11, change),
            Command::Thaw(thaw) => tagged(out, 12, thaw),
            Command::Lift { by } => tagged(out, 13, by),
            Command::Rules { number } => tagged(out, 14, number),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Command, DecodeError> {
        Ok(match input.byte()? {
            1 => Command::Acquire(input.take()?),
            2 => Command::Release(take_release(input)?),
            3 => Command::ReleaseAll(take_release_all(input)?),
            4 => Command::Renew(input.take()?),
            5 => Command::Expire(input.take()?),
            6 => Command::Tick,
            7 => Command::Ask(input.take()?),
            8 => Command::Break(input.take()?),
            9 => Command::Withdraw(input.take()?),
            10 => Command::Freeze(input.take()?),
            11 => Command::Change(input.take()?),
            12 => Command::Thaw(input.take()?),
            13 => Command::Lift { by: input.take()? },
            14 => Command::Rules {
                number: input.take()?,
            },
            // Since rules 2.
            15 => Command::Release(Release {
                whole: Some(input.take()?),
                ..take_release(input)?
            }),
            16 => Command::ReleaseAll(ReleaseAll {
                until: Some(input.take()?),
                ..take_release_all(input)?
            }),
            found => {
                return Err(DecodeError::Tag {
                    of: "command",
                    found,
                });
            }
        })
    }
}

fn put_release(out: &mut Writer, release: &Release) {
    match &release.whole {
        None => out.byte(2),
        Some(whole) => tagged(out, 15, whole),
    }
    out.put(&release.route);
    out.put(&release.owner);
    out.list(&release.holds);
    out.option(release.key.as_ref());
}

fn take_release(input: &mut Reader<'_>) -> Result<Release, DecodeError> {
    Ok(Release {
        route: input.take()?,
        owner: input.take()?,
        holds: input.list()?,
        key: input.option()?,
        whole: None,
    })
}

fn put_release_all(out: &mut Writer, release: &ReleaseAll) {
    match &release.until {
        None => out.byte(3),
        Some(until) => tagged(out, 16, until),
    }
    out.put(&release.owner);
    out.put(&release.selection);
    out.put(&release.cause);
}

fn take_release_all(input: &mut Reader<'_>) -> Result<ReleaseAll, DecodeError> {
    Ok(ReleaseAll {
        owner: input.take()?,
        selection: input.take()?,
        cause: input.take()?,
        until: None,
    })
}

fn tagged<T: Encode>(out: &mut Writer, tag: u8, value: &T) {
    out.byte(tag);
    out.put(value);
}
