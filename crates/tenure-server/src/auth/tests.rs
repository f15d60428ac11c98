//! Authentication and owner ids, without a daemon.

use tenure_core::auth::{OwnerPatterns, Target};
use tenure_core::path::{Namespace, Path as LockPath};
use tenure_core::value::OwnerId;

use super::*;

fn caller(name: &str, rights: &[(Verb, Option<&str>)]) -> Caller {
    let principal = Principal::parse(name).unwrap();
    let credential = match principal.is_anonymous() {
        true => Credential::Nothing,
        false => Credential::Named(principal.clone()),
    };
    let rights = rights.iter().map(|(verb, at)| Right {
        verbs: VerbSet::of([*verb]),
        at: at.map(|at| Namespace::parse(at).unwrap()),
        owners: OwnerPatterns::default(),
    });
    limited(principal, rights.collect(), credential)
}

fn limited(principal: Principal, rights: Vec<Right>, credential: Credential) -> Caller {
    let activity = Arc::new(ActivityTable::default());
    let limits = activity.limits_of(&principal, None);
    Caller::new(principal, rights, limits, credential, Some(1), None)
}

/// Whatever ids two principals send, they name different owners, and each sees its own as it sent it.
#[test]
fn owners_of_two_principals_are_never_the_same() {
    let ids = [
        "a",
        "a@b",
        "a@key:",
        "a@jwt:",
        "@",
        "a@",
        "a@key:x y",
        "key:one",
        "a@group:g",
        "a@anonymous",
    ];
    let callers = ["key:one", "key:two", "jwt:i/s", "unix:7", "anonymous"];
    let callers = callers.map(|name| caller(name, &[]));
    let mut seen = std::collections::HashMap::new();
    for (at, caller) in callers.iter().enumerate() {
        for id in ids {
            let Ok(owner) = caller.owner(id) else {
                continue;
            };
            assert_eq!(caller.shown(&owner), id);
            assert!(caller.owns(&owner));
            if let Some(before) = seen.insert(owner.as_str().to_owned(), (at, id)) {
                panic!("{before:?} and {:?} are both {owner}", (at, id));
            }
        }
    }
    // Callers without credentials have no suffix, so that their owners keep the names of 0.1.0.
    assert_eq!(callers[4].owner("a").unwrap().as_str(), "a");
    assert_eq!(callers[0].owner("a").unwrap().as_str(), "a@key:one");
}

#[test]
fn an_owner_of_another_principal_needs_the_verb_impersonate() {
    let (one, two) = (caller("key:one", &[]), caller("key:two", &[]));
    let owner = one.owner("job").unwrap();
    let shown = two.shown(&owner).into_owned();
    assert_eq!(shown, "job@key:one");
    assert_eq!(two.owner(&shown).unwrap_err().code, Code::PermissionDenied);
    assert_eq!(two.other_owner(&shown).unwrap(), owner);
    let unscoped = OwnerId::new("job").unwrap();
    let shown = two.shown(&unscoped).into_owned();
    assert_eq!(shown, "job@anonymous");
    assert_eq!(two.owner(&shown).unwrap_err().code, Code::PermissionDenied);
    assert_eq!(two.other_owner(&shown).unwrap(), unscoped);
    let admin = caller("key:two", &[(Verb::Impersonate, None)]);
    assert_eq!(admin.owner("job@key:one").unwrap(), owner);
    let stranger = caller("anonymous", &[]);
    let refused = stranger.owner("job@key:one").unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
}

#[test]
fn an_owner_id_must_fit_with_its_principal() {
    let one = caller("key:one", &[]);
    let longest = OwnerId::MAX_BYTES - "@key:one".len();
    assert!(one.owner(&"o".repeat(longest)).is_ok());
    let refused = one.owner(&"o".repeat(longest + 1)).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    assert_eq!(one.owner("").unwrap_err().code, Code::InvalidArgument);
}

/// R104 (scope of a key): the same key of two principals is two keys.
#[test]
fn idempotency_keys_belong_to_principals() {
    let callers = ["key:one", "key:two", "anonymous"].map(|name| caller(name, &[]));
    let keys = callers.map(|caller| caller.key("k").unwrap().unwrap());
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    assert_eq!(keys[2].as_str(), "k", "as in release 0.1.0");
    let stranger = caller("anonymous", &[]);
    assert!(stranger.key(keys[0].as_str()).is_err(), "not to be guessed");
    assert!(caller("key:one", &[]).key("").unwrap().is_none());
    assert!(caller("key:one", &[]).key(&"k".repeat(2000)).is_err());
}

#[test]
fn a_caller_may_what_one_row_says() {
    let ci = caller(
        "key:ci",
        &[(Verb::Lock, Some("ci:/a")), (Verb::Observe, None)],
    );
    let path = |text| LockPath::parse(text).unwrap();
    assert!(ci.may(Verb::Lock, Target::Path(&path("ci:/a/b"))));
    assert!(ci.may(Verb::Share, Target::Path(&path("ci:/a"))));
    assert!(!ci.may(Verb::Lock, Target::Path(&path("ci:/b"))));
    assert!(ci.observes(&path("x:/y")) && ci.may(Verb::Observe, Target::Everything));
    assert!(!ci.may(Verb::Lock, Target::Everything) && ci.may(Verb::Lock, Target::Anywhere));
    assert!(!ci.may(Verb::Break, Target::Anywhere));
}

/// A grant for some owner ids lets the principal act as these only.
#[test]
fn a_grant_may_be_for_some_owner_ids() {
    use tenure_core::value::Ttl;
    use tenure_node::ClientRequest;
    let principal = Principal::parse("key:ci").unwrap();
    let owners = OwnerPatterns::new(["ci-*".to_owned()]).unwrap();
    let right = Right {
        verbs: VerbSet::of([Verb::Lock, Verb::Observe]),
        at: None,
        owners,
    };
    let ci = limited(principal.clone(), vec![right], Credential::Named(principal));
    let renewal = |owner: &str| ClientRequest::Renew {
        owner: ci.owner(owner).unwrap(),
        ttl: Ttl::from_millis(1000).unwrap(),
        domains: Vec::new(),
        key: None,
    };
    assert!(judge(&ci, Verb::Share, &renewal("ci-7")).is_ok());
    let refused = judge(&ci, Verb::Share, &renewal("deploy")).unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(refused.message.contains("--owners deploy"), "{refused}");
    let path = LockPath::parse("x:/y").unwrap();
    assert!(
        ci.observes(&path),
        "it sees what is there whatever its owners"
    );
}
