//! `auth.toml`: all grants and groups of a cluster, and the difference to what the cluster has.
//!
//! ```toml
//! [[grant]]
//! to = "key:ci"
//! verbs = ["lock", "observe"]
//! at = "ci:/"
//!
//! [group]
//! ops = ["key:amy", "unix:1000"]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tenure_core::auth::Verb;
use tenure_wire::auth::{ChangeTableRequest, Grant, Group, ReadTableResponse};

/// The content of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    #[serde(default)]
    grant: Vec<WantedGrant>,
    #[serde(default)]
    group: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedGrant {
    to: String,
    verbs: Vec<String>,
    #[serde(default = "everything")]
    at: String,
}

fn everything() -> String {
    "*".to_owned()
}

/// What has to change.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// The version of the table that it was made from.
    pub(super) version: u64,
    pub(super) grant: Vec<Grant>,
    pub(super) revoke: Vec<Grant>,
    /// Groups to set; those without members are removed.
    pub(super) groups: Vec<Group>,
}

type Rows = BTreeMap<(String, String), BTreeSet<String>>;

impl Wanted {
    pub(super) fn parse(text: &str) -> Result<Wanted, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn rows(&self) -> Rows {
        let mut rows = Rows::new();
        for grant in &self.grant {
            let row = rows.entry((grant.to.clone(), grant.at.clone()));
            let row = row.or_default();
            for verb in &grant.verbs {
                match verb.as_str() {
                    // The table has every verb by its name.
                    "*" => row.extend(Verb::ALL.map(|verb| verb.name().to_owned())),
                    _ => drop(row.insert(verb.clone())),
                }
            }
        }
        rows
    }

    /// Compares the file with the table of the cluster.
    pub(super) fn difference(&self, table: &ReadTableResponse) -> Difference {
        let wanted = self.rows();
        let mut present = Rows::new();
        for grant in &table.grants {
            let row = present.entry((grant.to.clone(), grant.at.clone()));
            row.or_default().extend(grant.verbs.iter().cloned());
        }
        let groups = self.group.iter().map(|(name, members)| {
            let members: BTreeSet<String> = members.iter().cloned().collect();
            (format!("group:{name}"), members)
        });
        let groups: BTreeMap<String, BTreeSet<String>> = groups.collect();
        let present_groups = table.groups.iter().map(|group| {
            let members: BTreeSet<String> = group.members.iter().cloned().collect();
            (group.name.clone(), members)
        });
        let present_groups: BTreeMap<String, BTreeSet<String>> = present_groups.collect();
        let set = groups
            .iter()
            .filter(|(name, members)| present_groups.get(*name) != Some(members))
            .map(|(name, members)| (name.clone(), members.clone()));
        let removed = present_groups
            .keys()
            .filter(|name| !groups.contains_key(*name))
            .map(|name| (name.clone(), BTreeSet::new()));
        let changed = set.chain(removed).map(|(name, members)| Group {
            name,
            members: members.into_iter().collect(),
        });
        Difference {
            version: table.version,
            grant: without(&wanted, &present),
            revoke: without(&present, &wanted),
            groups: changed.collect(),
        }
    }
}

/// Returns the verbs of `one` that `other` does not have, row by row.
fn without(one: &Rows, other: &Rows) -> Vec<Grant> {
    let none = BTreeSet::new();
    let rows = one.iter().filter_map(|((to, at), verbs)| {
        let theirs = other.get(&(to.clone(), at.clone())).unwrap_or(&none);
        let verbs: Vec<String> = verbs.difference(theirs).cloned().collect();
        let (to, at) = (to.clone(), at.clone());
        (!verbs.is_empty()).then_some(Grant { to, verbs, at })
    });
    rows.collect()
}

impl Difference {
    pub(super) fn is_empty(&self) -> bool {
        self.grant.is_empty() && self.revoke.is_empty() && self.groups.is_empty()
    }

    /// Returns one line per change, for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let row = |sign: &str, grant: &Grant| format!("{sign} {}", super::grant_text(grant));
        let added = self.grant.iter().map(|grant| row("+", grant));
        let removed = self.revoke.iter().map(|grant| row("-", grant));
        let groups = self.groups.iter().map(|group| match group.members[..] {
            [] => format!("- {}", super::shown(&group.name)),
            _ => {
                let members: Vec<_> = group.members.iter().map(|one| super::shown(one)).collect();
                format!("~ {} = {}", super::shown(&group.name), members.join(", "))
            }
        });
        added.chain(removed).chain(groups).collect()
    }

    /// Returns the request that makes the change, if the table is still the same.
    pub(super) fn request(self) -> ChangeTableRequest {
        ChangeTableRequest {
            grant: self.grant,
            revoke: self.revoke,
            set_groups: self.groups,
            if_version: self.version,
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(to: &str, verbs: &[&str], at: &str) -> Grant {
        Grant {
            to: to.to_owned(),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            at: at.to_owned(),
        }
    }

    #[test]
    fn the_difference_names_what_is_missing_and_what_is_too_much() {
        let text = "[[grant]]\nto = 'key:ci'\nverbs = ['lock', 'observe']\nat = 'ci:/'\n\
                    [[grant]]\nto = 'key:root'\nverbs = ['auth']\n\
                    [group]\nops = ['key:amy']\n";
        let table = ReadTableResponse {
            version: 7,
            grants: vec![
                grant("key:ci", &["lock", "break"], "ci:/"),
                grant("key:old", &["lock"], "*"),
                grant("key:root", &["auth"], "*"),
            ],
            groups: vec![Group {
                name: "group:dev".to_owned(),
                members: vec!["key:bob".to_owned()],
            }],
            ..Default::default()
        };
        let difference = Wanted::parse(text).unwrap().difference(&table);
        assert_eq!(difference.version, 7);
        assert_eq!(difference.grant, [grant("key:ci", &["observe"], "ci:/")]);
        assert_eq!(
            difference.revoke,
            [
                grant("key:ci", &["break"], "ci:/"),
                grant("key:old", &["lock"], "*")
            ]
        );
        let groups: Vec<_> = difference
            .groups
            .iter()
            .map(|group| (group.name.as_str(), group.members.len()))
            .collect();
        assert_eq!(groups, [("group:ops", 1), ("group:dev", 0)]);
        assert_eq!(difference.lines().len(), 5);
    }

    #[test]
    fn a_file_that_says_what_the_cluster_has_makes_no_difference() {
        let all = Verb::ALL.map(Verb::name);
        let table = ReadTableResponse {
            grants: vec![
                grant("key:ci", &["lock"], "ci:/"),
                grant("key:root", &all, "*"),
            ],
            ..Default::default()
        };
        let text = "[[grant]]\nto = 'key:root'\nverbs = ['*']\n\
                    [[grant]]\nto = 'key:ci'\nverbs = ['lock']\nat = 'ci:/'\n";
        assert!(Wanted::parse(text).unwrap().difference(&table).is_empty());
        assert!(Wanted::parse("[[grants]]\n").is_err(), "unknown keys");
    }
}
