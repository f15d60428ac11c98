//! Validation of values (R1–R11, R15 limit for supplied tokens, R20 which paths a namespace
//! contains, R22 fallback namespace).

use tenure_core::path::{Namespace, Path};
use tenure_core::value::{Fence, Invalid, Key, OwnerId, QueueTtl, Ttl};

fn valid(text: &str) -> bool {
    Path::parse(text).is_ok()
}

/// R1 (path syntax and length): `handler:rest`, split at the first `:`, 1 to 4096 bytes.
#[test]
fn a_path_is_split_at_the_first_colon() {
    let path = Path::parse("h:/a:b/c:/d").unwrap();
    assert_eq!(path.handler(), "h");
    assert_eq!(path.segments().collect::<Vec<_>>(), ["a:b", "c:", "d"]);
    assert!(!valid(""));
    assert!(!valid("h"));
    assert!(!valid("/a"));
    let longest = format!("h:/{}", "a".repeat(4093));
    assert!(valid(&longest));
    assert!(!valid(&(longest + "a")));
    // Bytes count, not characters.
    assert!(!valid(&format!("h:/{}", "ü".repeat(2047))));
}

/// R2 (forbidden path characters): U+0000 and U+001F are refused, everything else is allowed.
#[test]
fn two_control_characters_are_refused() {
    assert!(!valid("h:/a\0"));
    assert!(!valid("h:/a\u{1f}b"));
    assert!(!valid("h\u{1f}:/a"));
    assert!(valid("h h:/a b/\u{1e}/\t/é:\n"));
}

/// R3 (handler syntax): a handler is not empty and has no `/`.
#[test]
fn a_handler_is_a_plain_word() {
    assert!(!valid(":/a"));
    assert!(!valid("h/x:/a"));
    assert!(valid("H.x-1:/a"));
}

/// R4 (path segments): `/`, or 1 to 256 segments, none of them empty, `.` or `..`.
#[test]
fn segments_are_checked() {
    assert!(valid("h:/"));
    assert!(!valid("h:"));
    assert!(!valid("h:a"));
    assert!(!valid("h:/a/"));
    assert!(!valid("h://a"));
    assert!(!valid("h:/a//b"));
    assert!(!valid("h:/./a"));
    assert!(!valid("h:/a/.."));
    assert!(valid("h:/.../..a/.b"));
    let many = |count: usize| format!("h:{}", "/a".repeat(count));
    assert!(valid(&many(256)));
    assert!(!valid(&many(257)));
    assert_eq!(Path::parse(&many(256)).unwrap().depth(), 256);
}

/// R5 (paths compare byte by byte): no normalization.
#[test]
fn paths_are_bytes() {
    assert_ne!(Path::parse("h:/A").unwrap(), Path::parse("h:/a").unwrap());
    assert_ne!(
        Path::parse("h:/e\u{301}").unwrap(),
        Path::parse("h:/é").unwrap()
    );
    assert_ne!(Path::parse("h:/%61").unwrap(), Path::parse("h:/a").unwrap());
}

/// R6 (definition of ancestor): the same handler, and fewer segments, which are the first ones of
/// the other path.
#[test]
fn ancestors_go_by_segments() {
    let above = |a: &str, b: &str| {
        Path::parse(a)
            .unwrap()
            .is_ancestor_of(&Path::parse(b).unwrap())
    };
    assert!(above("h:/a", "h:/a/b"));
    assert!(above("h:/a", "h:/a/b/c"));
    assert!(above("h:/", "h:/a"));
    assert!(!above("h:/a", "h:/a"));
    assert!(!above("h:/", "h:/"));
    assert!(!above("h:/a", "h:/ab"));
    assert!(!above("h:/a/b", "h:/a"));
    assert!(!above("g:/a", "h:/a/b"));
}

/// R7 (owner ids): an owner is any string of 1 to 1024 bytes without U+0000.
#[test]
fn owners_are_almost_any_text() {
    assert_eq!(OwnerId::new(""), Err(Invalid::Owner));
    assert_eq!(OwnerId::new("a\0"), Err(Invalid::Owner));
    assert!(OwnerId::new(&"a".repeat(1024)).is_ok());
    assert!(OwnerId::new(&"a".repeat(1025)).is_err());
    assert_eq!(
        OwnerId::new("v1:a\u{1f} /").unwrap().as_str(),
        "v1:a\u{1f} /"
    );
}

/// R8 (range of `ttl_ms`): 1 ms to 7 days.
#[test]
fn a_ttl_has_bounds() {
    assert!(Ttl::from_millis(0).is_err());
    assert_eq!(Ttl::from_millis(1).unwrap().millis(), 1);
    assert!(Ttl::from_millis(604_800_000).is_ok());
    assert!(Ttl::from_millis(604_800_001).is_err());
}

/// R9 (range of `queue_ttl_ms`): zero means one minute.
#[test]
fn a_queue_ttl_has_a_default() {
    assert_eq!(QueueTtl::from_millis(0).unwrap().millis(), 60_000);
    assert_eq!(QueueTtl::from_millis(1).unwrap().millis(), 1);
    assert!(QueueTtl::from_millis(604_800_000).is_ok());
    assert!(QueueTtl::from_millis(604_800_001).is_err());
}

/// R10 (idempotency key syntax): empty, which means no key, or up to 1024 bytes without U+0000.
#[test]
fn an_empty_key_is_none() {
    assert_eq!(Key::new(""), Ok(None));
    assert!(Key::new("k").unwrap().is_some());
    assert!(Key::new(&"k".repeat(1024)).is_ok());
    assert_eq!(Key::new(&"k".repeat(1025)), Err(Invalid::Key));
    assert_eq!(Key::new("k\0"), Err(Invalid::Key));
}

/// R11 (namespace strings): a path, or a bare handler of up to 1024 bytes.
#[test]
fn a_namespace_is_a_handler_or_a_path() {
    let valid = |text: &str| Namespace::parse(text).is_ok();
    assert!(valid("h"));
    assert!(valid("h:/"));
    assert!(valid("h:/a/b"));
    assert!(!valid(""));
    assert!(!valid("h/a"));
    assert!(!valid("h\u{1f}"));
    assert!(!valid("h\0"));
    assert!(!valid("h:a"));
    assert!(!valid("h:/a/"));
    assert!(valid(&"h".repeat(1024)));
    assert!(!valid(&"h".repeat(1025)));
    assert!(valid(&format!("h:/{}", "a".repeat(4093))));
}

/// R15 (limit for supplied tokens): a supplied fence is below 2^52; zero and less mean that one is
/// minted.
#[test]
fn supplied_fences_leave_room() {
    assert_eq!(Fence::supplied(0), Ok(None));
    assert_eq!(Fence::supplied(-5), Ok(None));
    assert_eq!(Fence::supplied(i64::MIN), Ok(None));
    assert_eq!(Fence::supplied(1).unwrap().unwrap().number(), 1);
    assert!(Fence::supplied((1 << 52) - 1).is_ok());
    assert!(Fence::supplied(1 << 52).is_err());
    assert!(Fence::supplied(i64::MAX).is_err());
    // R71 (tokens never go back): minted fences stay below 2^53.
    assert!(Fence::from_number((1 << 53) - 1).is_some());
    assert!(Fence::from_number(1 << 53).is_none());
    assert!(Fence::from_number(0).is_none());
}

/// R20 (which paths a namespace contains).
#[test]
fn a_namespace_contains_its_path_and_what_is_below() {
    let contains = |name: &str, path: &str| {
        Namespace::parse(name)
            .unwrap()
            .contains(&Path::parse(path).unwrap())
    };
    assert!(contains("h", "h:/"));
    assert!(contains("h", "h:/a/b"));
    assert!(!contains("h", "hh:/a"));
    assert!(contains("h:/", "h:/"));
    assert!(contains("h:/", "h:/a"));
    assert!(contains("h:/a", "h:/a"));
    assert!(contains("h:/a", "h:/a/b"));
    assert!(!contains("h:/a", "h:/ab"));
    assert!(!contains("h:/a", "h:/"));
    assert!(!contains("h:/a", "g:/a"));
}

/// R22 (fallback namespace): the handler and the first segments.
#[test]
fn the_fallback_namespace_has_so_many_segments() {
    let fallback = |path: &str, segments: usize| {
        Namespace::fallback(&Path::parse(path).unwrap(), segments).to_string()
    };
    assert_eq!(fallback("h:/a/b/c", 1), "h:/a");
    assert_eq!(fallback("h:/a/b/c", 2), "h:/a/b");
    assert_eq!(fallback("h:/a/b/c", 0), "h");
    assert_eq!(fallback("h:/a", 3), "h:/a");
    assert_eq!(fallback("h:/", 1), "h:/");
}
