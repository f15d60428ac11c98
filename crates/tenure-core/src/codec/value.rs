//! Encoding of the small values: paths, owners, numbers, modes, reasons.

use core::num::NonZeroU32;

use super::{DecodeError, Encode, Reader, Writer};
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use crate::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};
use crate::{record, record_enum};

record_enum!(Algorithm as "algorithm" {
    0 => RecursiveRw, 1 => PointRw, 2 => RecursiveWrite, 3 => PointWrite, 4 => Semaphore,
});
record_enum! { Mode as "mode" { 0 => Write, 1 => Read, 2 => ReadTree } }
record_enum! { BlockReason as "blocking reason" {
    1 => AncestorLocked, 2 => WriteLocked, 3 => ReadLocked, 4 => DescendantWriteLocked,
    5 => DescendantReadLocked, 9 => SemaphoreFull, 17 => Queued,
} }
record_enum! { Missing as "missing thing" {
    10 => Semaphore, 11 => Write, 12 => Read, 13 => Fence, 14 => Alive, 15 => OwnerSet,
} }
record_enum! { Reason as "reason" {
    1 => AncestorLocked,
    2 => WriteLocked,
    3 => ReadLocked,
    4 => DescendantWriteLocked,
    5 => DescendantReadLocked,
    6 => ReadLocksDisabled,
    7(current) => StaleFence { current },
    8(capacity) => InvalidPermits { capacity },
    9 => SemaphoreFull,
    17 => Queued,
} }
record! { Holder { name, host, pid, purpose, labels } }

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
