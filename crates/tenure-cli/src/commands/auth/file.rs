//! `auth.toml`: all grants, groups and limits of a cluster, and the difference to what the cluster has.
//!
//! ```toml
//! [[grant]]
//! to = "key:ci"
//! verbs = ["lock", "observe"]
//! at = "ci:/"
//!
//! [[limit]]
//! of = "key:ci"
//! paths = 1000
//! requests = 200
//!
//! [group]
//! ops = ["key:amy", "unix:1000"]
//! ```

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tenure_core::auth::Verb;
use tenure_wire::auth::{ChangeTableRequest, Grant, Group, Limit, Limits, ReadTableResponse};

/// The content of a file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    #[serde(default)]
    grant: Vec<WantedGrant>,
    #[serde(default)]
    group: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    limit: Vec<WantedLimits>,
}

#[derive(Debug, Deserialize)]
struct WantedLimits {
    of: String,
    #[serde(default = "everything")]
    at: String,
    /// The server knows the names.
    #[serde(flatten)]
    values: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WantedGrant {
    to: String,
    verbs: Vec<String>,
    #[serde(default = "everything")]
    at: String,
    #[serde(default)]
    owners: BTreeSet<String>,
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
    pub(super) set_limits: Vec<Limits>,
    pub(super) clear_limits: Vec<Limits>,
}

/// Verbs by principal, place and owners.
type Rows = BTreeMap<(String, String, BTreeSet<String>), BTreeSet<String>>;
/// Limits by subject and place.
type LimitRows = BTreeMap<(String, String), BTreeMap<String, u64>>;

impl Wanted {
    pub(super) fn parse(text: &str) -> Result<Wanted, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn rows(&self) -> Rows {
        let mut rows = Rows::new();
        for grant in &self.grant {
            let key = (grant.to.clone(), grant.at.clone(), grant.owners.clone());
            let row = rows.entry(key).or_default();
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
            let owners = grant.owners.iter().cloned().collect();
            let row = present.entry((grant.to.clone(), grant.at.clone(), owners));
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
        let (set_limits, clear_limits) = self.limits(table);
        Difference {
            set_limits,
            clear_limits,
            version: table.version,
            grant: without(&wanted, &present),
            revoke: without(&present, &wanted),
            groups: changed.collect(),
        }
    }
}

impl Wanted {
    /// Returns the limits to set and those to clear.
    fn limits(&self, table: &ReadTableResponse) -> (Vec<Limits>, Vec<Limits>) {
        let mut wanted = LimitRows::new();
        for row in &self.limit {
            let key = (row.of.clone(), row.at.clone());
            wanted.entry(key).or_default().extend(row.values.clone());
        }
        let mut present = LimitRows::new();
        for row in &table.limits {
            let values = row.values.iter();
            let values = values.map(|limit| (limit.name.clone(), limit.value));
            let key = (row.of.clone(), row.at.clone());
            present.entry(key).or_default().extend(values);
        }
        let other = |one: &LimitRows, other: &LimitRows, with_values: bool| {
            let none = BTreeMap::new();
            let rows = one.iter().filter_map(|((of, at), values)| {
                let theirs = other.get(&(of.clone(), at.clone())).unwrap_or(&none);
                let differs = |name: &str, value: u64| match theirs.get(name) {
                    Some(their) => with_values && *their != value,
                    None => true,
                };
                let values = values.iter().filter(|(name, value)| differs(name, **value));
                let values: Vec<Limit> = values
                    .map(|(name, value)| Limit {
                        name: name.clone(),
                        value: *value,
                    })
                    .collect();
                let (of, at) = (of.clone(), at.clone());
                (!values.is_empty()).then_some(Limits { of, at, values })
            });
            rows.collect::<Vec<_>>()
        };
        (
            other(&wanted, &present, true),
            other(&present, &wanted, false),
        )
    }
}

/// Returns the verbs of `one` that `other` does not have, row by row.
fn without(one: &Rows, other: &Rows) -> Vec<Grant> {
    let none = BTreeSet::new();
    let rows = one.iter().filter_map(|((to, at, owners), verbs)| {
        let key = (to.clone(), at.clone(), owners.clone());
        let theirs = other.get(&key).unwrap_or(&none);
        let verbs: Vec<String> = verbs.difference(theirs).cloned().collect();
        let (to, at) = (to.clone(), at.clone());
        let owners = owners.iter().cloned().collect();
        let grant = Grant {
            to,
            verbs,
            at,
            owners,
        };
        (!grant.verbs.is_empty()).then_some(grant)
    });
    rows.collect()
}

impl Difference {
    pub(super) fn is_empty(&self) -> bool {
        self.grant.is_empty()
            && self.revoke.is_empty()
            && self.groups.is_empty()
            && self.set_limits.is_empty()
            && self.clear_limits.is_empty()
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
        let limit = |sign: &str, row: &Limits| format!("{sign} {}", super::limits_text(row));
        let set = self.set_limits.iter().map(|row| limit("+", row));
        let cleared = self.clear_limits.iter().map(|row| limit("-", row));
        let limits = set.chain(cleared);
        added.chain(removed).chain(groups).chain(limits).collect()
    }

    /// Returns the request that makes the change, if the table is still the same.
    pub(super) fn request(self) -> ChangeTableRequest {
        ChangeTableRequest {
            grant: self.grant,
            revoke: self.revoke,
            set_groups: self.groups,
            set_limits: self.set_limits,
            clear_limits: self.clear_limits,
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
            owners: Vec::new(),
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
    fn limits_and_owners_are_part_of_the_difference() {
        let text = "[[grant]]\nto = 'key:ci'\nverbs = ['lock']\nowners = ['ci-*']\n\
                    [[limit]]\nof = 'everyone'\npaths = 7\nrequests = 5\n";
        let limits = |of: &str, values: &[(&str, u64)]| Limits {
            of: of.to_owned(),
            at: "*".to_owned(),
            values: values
                .iter()
                .map(|(name, value)| Limit {
                    name: (*name).to_owned(),
                    value: *value,
                })
                .collect(),
        };
        let mut table = ReadTableResponse {
            grants: vec![grant("key:ci", &["lock"], "*")],
            limits: vec![
                limits("everyone", &[("paths", 7), ("requests", 9), ("owners", 1)]),
                limits("total", &[("waiting", 1)]),
            ],
            ..Default::default()
        };
        let wanted = Wanted::parse(text).unwrap();
        let found = wanted.difference(&table);
        assert_eq!(found.set_limits, [limits("everyone", &[("requests", 5)])]);
        assert_eq!(
            found.clear_limits,
            [
                limits("everyone", &[("owners", 1)]),
                limits("total", &[("waiting", 1)])
            ]
        );
        let mut as_ci = grant("key:ci", &["lock"], "*");
        as_ci.owners = vec!["ci-*".to_owned()];
        assert_eq!(found.grant, [as_ci.clone()]);
        assert_eq!(found.revoke, [grant("key:ci", &["lock"], "*")]);
        assert_eq!(found.lines().len(), 5);
        table.grants = vec![as_ci];
        table.limits = vec![limits("everyone", &[("paths", 7), ("requests", 5)])];
        assert!(wanted.difference(&table).is_empty());
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
