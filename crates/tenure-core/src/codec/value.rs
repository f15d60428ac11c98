//! Encoding of the small values: paths, owners, numbers, modes, reasons.

use core::num::NonZeroU32;

use super::{DecodeError, Encode, Reader, Writer};
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use crate::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};

/// An enum without data as one byte.
macro_rules! tags {
    ($type:ident as $name:literal { $($variant:ident = $tag:literal),+ $(,)? }) => {
        impl Encode for $type {
            fn put(&self, out: &mut Writer) {
                out.byte(match self { $($type::$variant => $tag),+ });
            }
            fn take(input: &mut Reader<'_>) -> Result<$type, DecodeError> {
                match input.byte()? {
                    $($tag => Ok($type::$variant),)+
                    found => Err(DecodeError::Tag { of: $name, found }),
                }
            }
        }
    };
}
pub(super) use tags;

tags!(Algorithm as "algorithm" {
    RecursiveRw = 0, PointRw = 1, RecursiveWrite = 2, PointWrite = 3, Semaphore = 4,
});
tags!(Mode as "mode" { Write = 0, Read = 1, ReadTree = 2 });
tags!(BlockReason as "blocking reason" {
    AncestorLocked = 1, WriteLocked = 2, ReadLocked = 3, DescendantWriteLocked = 4,
    DescendantReadLocked = 5, SemaphoreFull = 9, Queued = 17,
});
tags!(Missing as "missing thing" {
    Semaphore = 10, Write = 11, Read = 12, Fence = 13, Alive = 14, OwnerSet = 15,
});

impl Encode for Path {
    fn put(&self, out: &mut Writer) {
        out.text(self.as_str());
    }
    fn take(input: &mut Reader<'_>) -> Result<Path, DecodeError> {
        Ok(Path::parse(input.text()?)?)
    }
}

impl Encode for Namespace {
    fn put(&self, out: &mut Writer) {
        out.text(self.as_str());
    }
    fn take(input: &mut Reader<'_>) -> Result<Namespace, DecodeError> {
        input.namespace()
    }
}

impl Encode for OwnerId {
    fn put(&self, out: &mut Writer) {
        out.text(self.as_str());
    }
    fn take(input: &mut Reader<'_>) -> Result<OwnerId, DecodeError> {
        Ok(OwnerId::new(input.text()?)?)
    }
}

impl Encode for Key {
    fn put(&self, out: &mut Writer) {
        out.text(self.as_str());
    }
    fn take(input: &mut Reader<'_>) -> Result<Key, DecodeError> {
        Key::new(input.text()?)?.ok_or(DecodeError::Inconsistent("an empty key is no key"))
    }
}

impl Encode for Ttl {
    fn put(&self, out: &mut Writer) {
        out.number(self.millis());
    }
    fn take(input: &mut Reader<'_>) -> Result<Ttl, DecodeError> {
        Ok(Ttl::from_millis(input.number()?)?)
    }
}

impl Encode for QueueTtl {
    fn put(&self, out: &mut Writer) {
        out.number(self.millis());
    }
    fn take(input: &mut Reader<'_>) -> Result<QueueTtl, DecodeError> {
        match input.number()? {
            0 => Err(DecodeError::Inconsistent(
                "a place in line lasts at least 1 ms",
            )),
            millis => Ok(QueueTtl::from_millis(millis)?),
        }
    }
}

impl Encode for Fence {
    fn put(&self, out: &mut Writer) {
        out.number(self.number());
    }
    fn take(input: &mut Reader<'_>) -> Result<Fence, DecodeError> {
        Fence::from_number(input.number()?).ok_or(DecodeError::Number)
    }
}

impl Encode for NonZeroU32 {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(self.get()));
    }
    fn take(input: &mut Reader<'_>) -> Result<NonZeroU32, DecodeError> {
        NonZeroU32::new(input.small()?).ok_or(DecodeError::Number)
    }
}

impl Encode for Holder {
    fn put(&self, out: &mut Writer) {
        out.text(&self.name);
        out.text(&self.host);
        out.put(&self.pid);
        out.text(&self.purpose);
        out.list(&self.labels);
    }
    fn take(input: &mut Reader<'_>) -> Result<Holder, DecodeError> {
        Ok(Holder {
            name: input.take()?,
            host: input.take()?,
            pid: input.take()?,
            purpose: input.take()?,
            labels: input.list()?,
        })
    }
}

impl Encode for Reason {
    fn put(&self, out: &mut Writer) {
        match self {
            Reason::AncestorLocked => out.byte(1),
            Reason::WriteLocked => out.byte(2),
            Reason::ReadLocked => out.byte(3),
            Reason::DescendantWriteLocked => out.byte(4),
            Reason::DescendantReadLocked => out.byte(5),
            Reason::ReadLocksDisabled => out.byte(6),
            Reason::StaleFence { current } => {
                out.byte(7);
                out.put(current);
            }
            Reason::InvalidPermits { capacity } => {
                out.byte(8);
                out.option(capacity.as_ref());
            }
            Reason::SemaphoreFull => out.byte(9),
            Reason::Queued => out.byte(17),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Reason, DecodeError> {
        Ok(match input.byte()? {
            1 => Reason::AncestorLocked,
            2 => Reason::WriteLocked,
            3 => Reason::ReadLocked,
            4 => Reason::DescendantWriteLocked,
            5 => Reason::DescendantReadLocked,
            6 => Reason::ReadLocksDisabled,
            7 => Reason::StaleFence {
                current: input.take()?,
            },
            8 => Reason::InvalidPermits {
                capacity: input.option()?,
            },
            9 => Reason::SemaphoreFull,
            17 => Reason::Queued,
            found => {
                return Err(DecodeError::Tag {
                    of: "reason",
                    found,
                });
            }
        })
    }
}
