//! Troubles with a connection, in words for people.
//!
//! The transport library reports what a system call or a parser said. One table translates that into
//! what happened and what to do next.

/// One kind of trouble.
struct Trouble {
    /// Any of these texts in the library's message shows it.
    signs: &'static [&'static str],
    /// What happened. It follows the name of the node.
    what: &'static str,
    /// What to do next.
    next: &'static str,
    /// Whether a retry is of no use: the address or the credentials are wrong.
    lasts: bool,
}

/// How the message begins if too few nodes of the cluster are up.
pub(super) const NO_MAJORITY: &str = "no majority";

/// The message if a port speaks another protocol.
pub(super) const NOT_GRPC: &str = "the port answers, but not with gRPC";

const START: &str =
    "start a daemon with `tenure serve`, or set TENURE_URL to the address of one that runs";

/// The first row whose sign is found counts, so the precise ones come first.
const TROUBLES: &[Trouble] = &[
    Trouble {
        signs: &[NO_MAJORITY],
        what: NO_MAJORITY,
        next: "start the nodes that are down (`tenure cluster status` names them); if they are lost for \
               good, see `tenure cluster recover --help`",
        lasts: false,
    },
    Trouble {
        signs: &[
            "InvalidContentType",
            "WRONG_VERSION_NUMBER",
            "WrongVersionNumber",
        ],
        what: "the port does not speak TLS",
        next: "use tenure:// instead of tenure+tls://, or give the daemon a certificate \
               (tls_cert_path, tls_key_path)",
        lasts: true,
    },
    Trouble {
        signs: &["UnknownIssuer", "unknown issuer", "CaUsedAsEndEntity"],
        what: "its certificate is signed by no authority that is trusted here",
        next: "set TENURE_CA_FILE to the authority's certificate, or TENURE_PIN to the fingerprint that \
               `tenure serve` prints",
        lasts: true,
    },
    Trouble {
        signs: &["NotValidForName", "not valid for name"],
        what: "its certificate is for another host name",
        next: "use a name of the certificate in TENURE_URL",
        lasts: true,
    },
    Trouble {
        signs: &["Expired", "NotValidYet"],
        what: "its certificate is not valid now",
        next: "renew the daemon's certificate, and check the clocks of both machines",
        lasts: true,
    },
    Trouble {
        signs: &[
            "CertificateRequired",
            "certificate required",
            "HandshakeFailure",
        ],
        what: "it demands a client certificate",
        next: "set TENURE_CLIENT_CERT_FILE and TENURE_CLIENT_KEY_FILE",
        lasts: true,
    },
    Trouble {
        signs: &["invalid peer certificate", "BadSignature", "pinned"],
        what: "its certificate is not the expected one",
        next: "compare TENURE_PIN or TENURE_CA_FILE with what `tenure serve` prints",
        lasts: true,
    },
    Trouble {
        signs: &[
            "invalid compression flag",
            "invalid HTTP version",
            "FRAME_SIZE_ERROR",
            "frame with invalid size",
            "invalid content type",
            "grpc-status header missing",
            "PROTOCOL_ERROR",
            "HTTP_1_1_REQUIRED",
        ],
        what: NOT_GRPC,
        next: "TENURE_URL needs the gRPC port (50051 by default), not the web port",
        lasts: true,
    },
    Trouble {
        signs: &["onnection refused"],
        what: "no daemon listens there",
        next: START,
        lasts: false,
    },
    Trouble {
        signs: &[
            "failed to lookup address",
            "Name or service not known",
            "nodename nor servname",
            "No address associated",
        ],
        what: "the host name is unknown",
        next: "check the name in TENURE_URL",
        lasts: true,
    },
    Trouble {
        signs: &[
            "Network is unreachable",
            "No route to host",
            "Host is unreachable",
        ],
        what: "there is no route to it",
        next: "check the address in TENURE_URL and the network",
        lasts: false,
    },
    Trouble {
        signs: &["no answer in time", "deadline has elapsed", "timed out"],
        what: "no answer in time",
        next: "check that the address in TENURE_URL is the daemon's and that no firewall is in the way",
        lasts: false,
    },
    Trouble {
        signs: &[
            "onnection reset",
            "roken pipe",
            "unexpected end of file",
            "UnexpectedEof",
            "unexpected EOF",
            "connection closed",
            "connection broke",
            "stream closed",
        ],
        what: "the connection was closed",
        next: "try again; if it happens each time, the port may need TLS: tenure+tls://",
        lasts: true,
    },
];

fn row(text: &str) -> Option<&'static Trouble> {
    let shows = |trouble: &&Trouble| trouble.signs.iter().any(|sign| text.contains(sign));
    TROUBLES.iter().find(shows)
}

/// Translates the message of the transport library. A message that is not known stays as it is.
pub(super) fn plain(raw: &str) -> String {
    row(raw).map_or_else(|| raw.to_owned(), |trouble| trouble.what.to_owned())
}

/// Whether a retry is of no use after a message that [`plain`] has made. With several nodes the
/// message has one part for each, and one of them may be of use.
pub(super) fn is_lasting(what: &str) -> bool {
    let lasts = |part: &str| {
        let is_said = |trouble: &&Trouble| part.contains(trouble.what);
        TROUBLES
            .iter()
            .find(is_said)
            .is_some_and(|trouble| trouble.lasts)
    };
    what.split("; ").all(lasts)
}

/// Whether the message shows that the other side does not speak gRPC.
pub(super) fn is_foreign(raw: &str) -> bool {
    row(raw).is_some_and(|trouble| trouble.what == NOT_GRPC)
}

/// Returns what to do after a message that [`plain`] has made.
pub(super) fn next_step(what: &str) -> Option<&'static str> {
    let is_said = |trouble: &&Trouble| what.contains(trouble.what);
    TROUBLES.iter().find(is_said).map(|trouble| trouble.next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_library_becomes_what_happened_and_what_next() {
        let raw = "transport error: tcp connect error: Connection refused (os error 111)";
        let what = plain(raw);
        assert_eq!(what, "no daemon listens there");
        assert_eq!(next_step(&format!("127.0.0.1:1: {what}")), Some(START));
        let tls = plain("transport error: received corrupt message of type InvalidContentType");
        assert!(tls.contains("does not speak TLS"), "{tls}");
        assert!(is_lasting(&format!("a:1: {tls}")));
        assert!(!is_lasting(&format!("a:1: {tls}; b:1: {what}")));
        assert_eq!(plain("something new"), "something new");
        assert_eq!(next_step("something new"), None);
    }

    /// The advice for a message is the one of its own row.
    #[test]
    fn every_message_finds_its_own_row() {
        for trouble in TROUBLES {
            assert_eq!(
                next_step(trouble.what),
                Some(trouble.next),
                "{}",
                trouble.what
            );
        }
    }
}
