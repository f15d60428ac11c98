//! Ways in which a driver or a client can break its contract. They exist to be caught: the museum
//! (`cargo sim -- --museum`) runs each until a judge objects, and no other run has any.

/// One broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breach {
    /// Votes and acknowledgements leave before their batch is durable.
    VoteBeforeSync,
    /// Batches are reported durable when they are written.
    AnswerBeforeSync,
    /// A node that lost its disk comes back under its old life.
    WipedVoterVotes,
    /// A restarted process takes the start number of its predecessor: rounds are named twice.
    ReusedStart,
    /// A node's instant leaps ahead with every step.
    LeapingInstant,
    /// A client counts its lease from the answer.
    CountsFromAnswer,
    /// A client uses 95 % of its lease.
    UsesWholeLease,
    /// A client takes the GRANT of an earlier place for the present one.
    TrustsAnyGrant,
    /// A client takes an owner up again before its release was answered.
    AcquiresBeforeReleased,
}

impl Breach {
    /// All of them.
    pub const ALL: [Breach; 9] = [
        Breach::VoteBeforeSync,
        Breach::AnswerBeforeSync,
        Breach::WipedVoterVotes,
        Breach::ReusedStart,
        Breach::LeapingInstant,
        Breach::CountsFromAnswer,
        Breach::UsesWholeLease,
        Breach::TrustsAnyGrant,
        Breach::AcquiresBeforeReleased,
    ];

    /// The one of this name.
    pub fn called(name: &str) -> Option<Breach> {
        Breach::ALL.into_iter().find(|breach| breach.name() == name)
    }

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Breach::VoteBeforeSync => "vote-before-sync",
            Breach::AnswerBeforeSync => "answer-before-sync",
            Breach::WipedVoterVotes => "wiped-voter-votes",
            Breach::ReusedStart => "reused-start",
            Breach::LeapingInstant => "leaping-instant",
            Breach::CountsFromAnswer => "counts-from-answer",
            Breach::UsesWholeLease => "uses-whole-lease",
            Breach::TrustsAnyGrant => "trusts-any-grant",
            Breach::AcquiresBeforeReleased => "acquires-before-released",
        }
    }
}
