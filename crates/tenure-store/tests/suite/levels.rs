//! Abilities of a store are probed, not assumed (P26 levels of conditional writes, P27 require
//! conditional writes).

use tenure_store::{Class, ConditionLevel, Demand, LockPurpose, Options, Repository};

use crate::support::LockMode;
use crate::support::s3_server::{BUCKET, Conditions, S3Server};
use crate::support::virtual_time::config;

fn open(server: &S3Server, demand: Demand) -> Repository {
    let options = Options {
        config: config(server),
        demand,
        ..Options::default()
    };
    let place = format!("s3://{BUCKET}").parse().expect("an address");
    Repository::open(place, options).expect("a repository")
}

/// P26: correct servers of every level, and one that ignores conditions but answers 200.
#[tokio::test]
async fn the_level_is_what_the_store_shows() {
    for (conditions, level) in [
        (Conditions::Honoured, ConditionLevel::Deletes),
        (Conditions::OnPutOnly, ConditionLevel::Writes),
        (Conditions::Ignored, ConditionLevel::Nothing),
        (Conditions::Refused(501), ConditionLevel::Nothing),
        (Conditions::Refused(400), ConditionLevel::Nothing),
    ] {
        let server = S3Server::start();
        server.set_conditions(conditions);
        let repository = open(&server, Demand::Anything);
        let abilities = repository.abilities().await.expect("a probe");
        assert_eq!(abilities.level, level, "{conditions:?}");
        assert_eq!(
            server.keys(""),
            [""; 0],
            "{conditions:?}: the probe cleans up"
        );
        let guard = repository
            .lock(LockPurpose::new(LockMode::Exclusive, "prune"))
            .await
            .expect("free");
        guard.release().await.expect("given back");
        assert_eq!(
            server.keys("index/lock.exclusive"),
            [""; 0],
            "{conditions:?}"
        );
    }
}

/// P27: if conditional writes are required, a store without them is refused.
#[tokio::test]
async fn a_liar_is_refused_where_conditions_are_demanded() {
    let server = S3Server::start();
    server.set_conditions(Conditions::Ignored);
    let repository = open(&server, Demand::ConditionalWrites);
    let refused = repository
        .lock(LockPurpose::new(LockMode::Shared, "backup"))
        .await
        .expect_err("level 0");
    assert_eq!(refused.class(), Class::Unsupported, "{refused}");
    assert_eq!(server.keys("index/lock.shared"), [""; 0]);
}
