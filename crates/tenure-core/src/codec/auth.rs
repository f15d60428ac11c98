//! Encoding of the access control table and its changes.

use super::{DecodeError, Encode, Reader, Writer};
use crate::auth::{
    AuthChange, AuthCommand, AuthKey, AuthRefusal, AuthTable, Grant, Lockout, OwnerPatterns,
    Principal, VerbSet,
};
use crate::limits::{LimitKind, LimitRow, LimitSubject, LimitValues};
use crate::{record, record_enum};

record! { AuthKey { id, name, hash, created_ms, expires_ms } }
record! { Grant { to, verbs, at, owners } }
record! { LimitRow { of, at, values } }
record_enum! { LimitSubject as "subject of a limit" {
    0 => Everyone, 1 => Total, 2(principal) => Of(principal),
} }
record! { AuthCommand { changes, if_version, lockout } }
record_enum! { Lockout as "lockout" { 0 => Refuse, 1 => Accept } }
record_enum! { AuthChange as "change of permissions" {
    1(key) => AddKey(key),
    2(id) => RemoveKey(id),
    3(grant) => Grant(grant),
    4(grant) => Revoke(grant),
    5(group, members) => SetGroup { group, members },
    6(row) => SetLimits(row),
    7(of, at, kinds) => ClearLimits { of, at, kinds },
} }
record_enum! { AuthRefusal as "refused change of permissions" {
    1(present) => Version { present },
    2 => KeyExists,
    3 => TooManyKeys,
    4 => NoSuchKey,
    5 => NoSuchGrant,
    6 => Full,
    7 => LastAdministrator,
    8 => Invalid,
    9 => NoSuchLimit,
} }

impl Encode for Principal {
    fn put(&self, out: &mut Writer) {
        out.text(self.as_str());
    }
    fn take(input: &mut Reader<'_>) -> Result<Principal, DecodeError> {
        let invalid = |_| DecodeError::Inconsistent("the name of a principal");
        Principal::parse(input.text()?).map_err(invalid)
    }
}

impl Encode for VerbSet {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(self.number()));
    }
    fn take(input: &mut Reader<'_>) -> Result<VerbSet, DecodeError> {
        let number = u16::try_from(input.number()?).ok();
        let set = number.and_then(VerbSet::from_number);
        set.ok_or(DecodeError::Number)
    }
}

impl Encode for OwnerPatterns {
    fn put(&self, out: &mut Writer) {
        out.length(self.iter().count());
        for pattern in self.iter() {
            out.text(pattern);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<OwnerPatterns, DecodeError> {
        let mut patterns = alloc::vec::Vec::new();
        for _ in 0..input.length()? {
            patterns.push(input.text()?.into());
        }
        let invalid = |_| DecodeError::Inconsistent("the owners of a grant");
        OwnerPatterns::new(patterns).map_err(invalid)
    }
}

impl Encode for LimitKind {
    fn put(&self, out: &mut Writer) {
        out.byte(self.number());
    }
    fn take(input: &mut Reader<'_>) -> Result<LimitKind, DecodeError> {
        let found = input.byte()?;
        let of = "limit";
        LimitKind::from_number(found).ok_or(DecodeError::Tag { of, found })
    }
}

impl Encode for LimitValues {
    fn put(&self, out: &mut Writer) {
        out.length(self.len());
        for (kind, value) in self {
            out.put(kind);
            out.number(*value);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<LimitValues, DecodeError> {
        let mut values = LimitValues::new();
        for _ in 0..input.length()? {
            values.insert(input.take()?, input.number()?);
        }
        Ok(values)
    }
}

impl Encode for [u8; 32] {
    fn put(&self, out: &mut Writer) {
        out.raw(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<[u8; 32], DecodeError> {
        let mut bytes = [0; 32];
        for byte in &mut bytes {
            *byte = input.byte()?;
        }
        Ok(bytes)
    }
}

impl Encode for AuthTable {
    fn put(&self, out: &mut Writer) {
        out.number(self.version());
        out.length(self.keys().count());
        for key in self.keys() {
            out.put(key);
        }
        out.length(self.groups().count());
        for (group, members) in self.groups() {
            out.put(group);
            out.length(members.len());
            for member in members {
                out.put(member);
            }
        }
        out.length(self.grants().count());
        for grant in self.grants() {
            out.put(&grant);
        }
        out.length(self.limits().count());
        for row in self.limits() {
            out.put(&row);
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<AuthTable, DecodeError> {
        let version = input.number()?;
        let keys = input.list()?;
        let mut groups = alloc::vec::Vec::new();
        for _ in 0..input.length()? {
            groups.push((input.take()?, input.list()?));
        }
        let grants = input.list()?;
        Ok(AuthTable::restore(
            version,
            keys,
            groups,
            grants,
            input.list()?,
        ))
    }
}
