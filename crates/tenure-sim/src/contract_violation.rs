//! Ways in which a driver or a client can break its contract. They exist to be caught: the list of planted bugs
//! (`cargo sim -- --find_planted_bugs`) runs each until a checker objects, and no other run has any.

/// One broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContractViolation {
    /// Votes and acknowledgements leave before their batch is durable.
    VoteBeforeSync,
    /// Batches are reported durable when they are written.
    AnswerBeforeSync,
    /// A node that lost its disk comes back under its old incarnation.
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

impl ContractViolation {
    /// All of them.
    pub const ALL: [ContractViolation; 9] = [
        ContractViolation::VoteBeforeSync,
        ContractViolation::AnswerBeforeSync,
        ContractViolation::WipedVoterVotes,
        ContractViolation::ReusedStart,
        ContractViolation::LeapingInstant,
        ContractViolation::CountsFromAnswer,
        ContractViolation::UsesWholeLease,
        ContractViolation::TrustsAnyGrant,
        ContractViolation::AcquiresBeforeReleased,
    ];

    /// The one of this name.
    pub fn called(name: &str) -> Option<ContractViolation> {
        ContractViolation::ALL
            .into_iter()
            .find(|contract_violation| contract_violation.name() == name)
    }

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ContractViolation::VoteBeforeSync => "vote-before-sync",
            ContractViolation::AnswerBeforeSync => "answer-before-sync",
            ContractViolation::WipedVoterVotes => "wiped-voter-votes",
            ContractViolation::ReusedStart => "reused-start",
            ContractViolation::LeapingInstant => "leaping-instant",
            ContractViolation::CountsFromAnswer => "counts-from-answer",
            ContractViolation::UsesWholeLease => "uses-whole-lease",
            ContractViolation::TrustsAnyGrant => "trusts-any-grant",
            ContractViolation::AcquiresBeforeReleased => "acquires-before-released",
        }
    }
}
