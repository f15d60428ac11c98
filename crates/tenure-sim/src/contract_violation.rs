//! Contract violations: deliberate breaches by the simulated driver or by a simulated client.
//!
//! They verify the checkers: `cargo sim -- --planted-bugs` runs each until a checker reports it. No
//! other run has any.

/// One contract violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContractViolation {
    /// The driver sends votes and acknowledgements before their batch is durable.
    VoteBeforeSync,
    /// The driver reports batches as durable when they are only written.
    AnswerBeforeSync,
    /// A node that lost its disk returns in its old incarnation.
    WipedVoterVotes,
    /// A restarted process reuses the start number of its predecessor, so that ReadIndex rounds get
    /// the same names again.
    ReusedStart,
    /// A node's monotonic clock jumps ahead by 800 ms in one of ten steps.
    LeapingInstant,
    /// A client counts its lease from the arrival of the answer instead of from the sending of the
    /// request.
    CountsFromAnswer,
    /// A client uses 95 % of its lease instead of 80 %.
    UsesWholeLease,
    /// A client takes the GRANT of an earlier waiter for the grant of the present one.
    TrustsAnyGrant,
    /// A client reuses an owner before its release was answered.
    AcquiresBeforeReleased,
}

impl ContractViolation {
    /// All violations.
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

    /// Returns the violation with this name.
    pub fn called(name: &str) -> Option<ContractViolation> {
        ContractViolation::ALL
            .into_iter()
            .find(|contract_violation| contract_violation.name() == name)
    }

    /// Returns the name in `planted_bugs.toml` and on the command line.
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
