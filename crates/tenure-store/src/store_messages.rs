//! Troubles with a store, in words for people.
//!
//! The storage library reports requests, XML documents and builders. One table translates that into
//! what happened and what to do next.

/// One kind of trouble.
struct Trouble {
    /// Any of these texts in the library's message shows it.
    signs: &'static [&'static str],
    /// What happened, and what to do next.
    text: &'static str,
    /// Whether a retry is of no use, although the store has not answered. A status of the store
    /// decides by itself.
    lasts: bool,
}

/// The first row whose sign is found counts, so the precise ones come first.
const TROUBLES: &[Trouble] = &[
    Trouble {
        signs: &["URL scheme is not allowed"],
        text: "the endpoint is http://, which is not encrypted; to use it, set AWS_ALLOW_HTTP=true",
        lasts: true,
    },
    Trouble {
        // The last resort of the library is the metadata service of a cloud machine.
        signs: &[
            "169.254.169.254",
            "metadata.google.internal",
            "169.254.170.2",
            "Failed to get credentials",
            "MissingCredentials",
            "Account must be specified",
        ],
        text: "there are no credentials for the bucket; for s3:// set AWS_ACCESS_KEY_ID and \
               AWS_SECRET_ACCESS_KEY, for gs:// GOOGLE_APPLICATION_CREDENTIALS, for az:// \
               AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        lasts: false,
    },
    Trouble {
        signs: &[
            "NoSuchBucket",
            "ContainerNotFound",
            "The specified bucket does not exist",
        ],
        text: "the bucket does not exist; create it, or correct its name in the address",
        lasts: false,
    },
    Trouble {
        signs: &[
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidToken",
            "ExpiredToken",
        ],
        text: "the store does not accept the credentials; check AWS_ACCESS_KEY_ID, \
               AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        lasts: false,
    },
    Trouble {
        signs: &["AccessDenied", "403 Forbidden", "AuthorizationFailure"],
        text: "the credentials may not read, write and list here; grant these rights on the prefix \
               of the repository",
        lasts: false,
    },
    Trouble {
        signs: &[
            "PermanentRedirect",
            "AuthorizationHeaderMalformed",
            "IncorrectEndpoint",
        ],
        text: "the bucket is in another region; set AWS_REGION to the bucket's region",
        lasts: false,
    },
    Trouble {
        signs: &["onnection refused"],
        text: "no store listens on the endpoint; start it, or correct AWS_ENDPOINT",
        lasts: false,
    },
    Trouble {
        signs: &[
            "failed to lookup address",
            "Name or service not known",
            "dns error",
        ],
        text: "the host name of the store is unknown; check AWS_ENDPOINT, AWS_REGION and the network",
        lasts: false,
    },
    Trouble {
        signs: &[
            "InvalidContentType",
            "invalid peer certificate",
            "UnknownIssuer",
        ],
        text: "the endpoint's TLS is not accepted; check whether AWS_ENDPOINT is https:// and its \
               certificate is trusted here",
        lasts: false,
    },
];

fn row(text: &str) -> Option<&'static Trouble> {
    let shows = |trouble: &&Trouble| trouble.signs.iter().any(|sign| text.contains(sign));
    TROUBLES.iter().find(shows)
}

/// Translates the message of the storage library. A message that is not known stays as it is.
pub(crate) fn plain(raw: &str) -> String {
    row(raw).map_or_else(|| raw.to_owned(), |trouble| trouble.text.to_owned())
}

/// Whether a retry is of no use after this message of the library.
pub(crate) fn lasts(raw: &str) -> bool {
    row(raw).is_some_and(|trouble| trouble.lasts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_library_becomes_what_happened_and_what_next() {
        let raw = "Error performing PUT http://169.254.169.254/latest/api/token in 2.1s";
        assert!(plain(raw).contains("AWS_ACCESS_KEY_ID"));
        assert!(!lasts(raw), "a metadata service can be slow for a moment");
        assert!(lasts("builder error: URL scheme is not allowed"));
        let refused = "error sending request: tcp connect error: Connection refused (os error 111)";
        assert!(plain(refused).contains("AWS_ENDPOINT"));
        assert!(!lasts(refused), "a store that restarts is back soon");
        assert_eq!(plain("something new"), "something new");
    }
}
