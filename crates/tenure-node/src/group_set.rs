//! Bit sets of groups, for calls that concern many or all groups.

use crate::GroupId;
use crate::codec::{DecodeResult, Encode, Reader, Writer};

/// Some groups, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupSet {
    /// The last word, if there is one, is not zero.
    words: Vec<u64>,
}

impl GroupSet {
    /// Numbers from here on are in no set: no cluster has so many groups.
    pub(crate) const END: u32 = 1 << 20;

    /// The groups with numbers below this.
    pub(crate) fn below(count: u32) -> GroupSet {
        let count = count.min(Self::END);
        let mut words = vec![u64::MAX; (count / 64) as usize];
        if !count.is_multiple_of(64) {
            words.push((1 << (count % 64)) - 1);
        }
        GroupSet { words }
    }

    /// Adds a group; one that no cluster has is left out.
    pub(crate) fn insert(&mut self, group: GroupId) {
        if group.0 >= Self::END {
            return;
        }
        let (word, bit) = place(group);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Takes a group out. Says whether it was there.
    pub(crate) fn remove(&mut self, group: GroupId) -> bool {
        let (word, bit) = place(group);
        let Some(there) = self.words.get_mut(word) else {
            return false;
        };
        let was = *there & bit != 0;
        *there &= !bit;
        self.trim();
        was
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        let ones = self.words.iter().map(|word| word.count_ones() as usize);
        ones.sum()
    }

    pub(crate) fn is_subset(&self, other: &GroupSet) -> bool {
        let others = other.words.iter().copied().chain(std::iter::repeat(0));
        let mut pairs = self.words.iter().zip(others);
        pairs.all(|(mine, theirs)| mine & !theirs == 0)
    }

    /// Adds all groups of another set.
    pub(crate) fn join(&mut self, other: &GroupSet) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (mine, theirs) in self.words.iter_mut().zip(&other.words) {
            *mine |= theirs;
        }
    }

    /// Those that are in the other set, too.
    pub(crate) fn both(&self, other: &GroupSet) -> GroupSet {
        let pairs = self.words.iter().zip(&other.words);
        let mut common = GroupSet {
            words: pairs.map(|(mine, theirs)| mine & theirs).collect(),
        };
        common.trim();
        common
    }

    /// Those that are not in the other set.
    pub(crate) fn without(&self, other: &GroupSet) -> GroupSet {
        let mut left = self.clone();
        for (mine, theirs) in left.words.iter_mut().zip(&other.words) {
            *mine &= !theirs;
        }
        left.trim();
        left
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = GroupId> {
        self.words.iter().zip(0u32..).flat_map(|(word, at)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(GroupId(at * 64 + bit))
            })
        })
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// A list of numbers.
impl Encode for GroupSet {
    fn put(&self, out: &mut Writer) {
        out.length(self.len());
        for group in self.iter() {
            out.put(&group);
        }
    }
    fn take(input: &mut Reader<'_>) -> DecodeResult<GroupSet> {
        let groups: Vec<GroupId> = input.take()?;
        Ok(groups.into_iter().collect())
    }
}

fn place(group: GroupId) -> (usize, u64) {
    ((group.0 / 64) as usize, 1 << (group.0 % 64))
}

impl FromIterator<GroupId> for GroupSet {
    fn from_iter<I: IntoIterator<Item = GroupId>>(groups: I) -> GroupSet {
        let mut set = GroupSet::default();
        for group in groups {
            set.insert(group);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: &[u32]) -> GroupSet {
        numbers.iter().copied().map(GroupId).collect()
    }

    #[test]
    fn a_set_has_what_was_put_into_it_in_order() {
        let mut groups = set(&[300, 5, 64, 5, 63]);
        let numbers: Vec<u32> = groups.iter().map(|group| group.0).collect();
        assert_eq!(numbers, [5, 63, 64, 300]);
        assert_eq!(groups.len(), 4);
        assert!(groups.remove(GroupId(300)));
        assert!(!groups.remove(GroupId(300)));
        assert_eq!(groups, set(&[5, 63, 64]));
        for group in [5, 63, 64] {
            assert!(groups.remove(GroupId(group)));
        }
        assert!(groups.is_empty());
    }

    #[test]
    fn all_below_a_number_are_there_and_no_other() {
        for count in [0, 1, 63, 64, 65, 256] {
            let all = GroupSet::below(count);
            assert_eq!(all, (0..count).map(GroupId).collect());
        }
    }

    #[test]
    fn sets_are_compared_joined_and_taken_apart() {
        let (mut one, two) = (set(&[1, 70]), set(&[70, 200]));
        assert!(!one.is_subset(&two) && set(&[70]).is_subset(&two));
        assert!(!two.is_subset(&one), "also where it is the longer one");
        assert_eq!(two.without(&one), set(&[200]));
        assert_eq!(one.both(&two), set(&[70]));
        assert_eq!(set(&[1, 300]).both(&one), set(&[1]));
        assert_eq!(one.without(&two), set(&[1]));
        one.join(&two);
        assert_eq!(one, set(&[1, 70, 200]));
    }

    /// A peer can name any number.
    #[test]
    fn a_number_that_no_cluster_has_takes_no_room() {
        assert!(set(&[u32::MAX, GroupSet::END]).is_empty());
    }
}
