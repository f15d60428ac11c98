//! Exhaustive models of Tenure's replicated protocols.
//!
//! Each model visits every state that its bounds allow and checks its properties in each. A `Mistake` takes one protection
//! out; a test per mistake shows that the model finds the fault and prints the shortest way to it. `cargo test -p
//! tenure-models -- --nocapture` prints the counts below (about 30 s of one core); `TENURE_MODELS=full` has larger bounds
//! (`cargo xtask slow models`).
//!
//! | model | properties | bounds of CI | states | mistakes that are found |
//! |---|---|---|---|---|
//! | [`fanout`]: keyed ForceRelease over groups, on the shipped `System` and `Space` | one effect per group and one KILLED per key; nothing ends after OK; OK means gone | 2 attempts, 2 groups, 1 crash, 1 late copy, 2 acquires, a second owner | 87 258 | no plan; own plan counts; plan without numbers; KILLED beside the plan |
//! | [`release`]: keyed Release across moved paths, on the shipped machines | the key ends one hold of a path; nothing ends after OK; OK means gone, but for one known fault | 1 path, 2 attempts, 2 changes of routes, 2 acquires, 2 expiries, 1 crash | 46 662 | never asks; asks one group; a frozen group answers; asked for any change |
//! | the same | the same | 2 paths, 2 attempts, 2 changes, 2 acquires, 1 expiry | 191 741 | |
//! | [`policy`]: policy changes with several drivers, on the shipped machines | made once; answered truthfully; no live hold moves; every change ends | 2 administrators, 3 attempts, 3 nodes that drive, 1 crash, a hold | 244 707 | begins again; key names no change; decides early; never resumed |
//! | the same | the same | 1 administrator, 2 attempts, 1 crash, 1 late copy, 1 lost answer | 58 873 | |
//! | [`hosted`]: the shared log of an engine, on the shipped attempts, observers and replicas | who believes to hold holds by the log; a call is in the log once; every client can finish | 2 clients, 1 lost answer, 1 beat | 101 143 | expiry without the condition; ttl from before the read; lease from the answer; beat without a read; retry without the id; retry after a trim; trim before the snapshot |
//! | the same | the same | 2 clients; 1 lost answer and 1 trim, or 1 crash | 45 639 + 95 288 | |
//! | [`raft`]: a replica is removed and added again | see [`raft`] | 4 nodes, 3 changes, 2 terms, 1 late answer | 180 742 | same identity; answers for its predecessor; deleted early; two changes at once |
//! | [`raft`]: a founder takes in two others | see [`raft`] | 3 nodes, 2 changes, 3 terms, 1 crash, 1 late answer | 91 890 | commit index not written with a change |
//! | [`raft`]: one of three is replaced, requested twice | see [`raft`] | 4 nodes, joint configuration, 2 terms, 1 crash or 1 late answer | 88 565 + 102 999 | no joint configuration; lost change stays open; left by its proposer only |
//! | [`bootstrap`], all nodes name seeds | see [`bootstrap`] | 3 nodes, 1 wipe, 2 stops, 1 cut, 1 decision | 4 936 | silent seeds count as none |
//! | [`bootstrap`], the founder names none | see [`bootstrap`] | the same | 7 072 | does not listen |
//! | [`bootstrap`], `init` on two nodes | see [`bootstrap`] | the same, 2 orders, no wipe | 30 816 | the stop for another cluster is forgotten; histories of two moments |
//! | the same, all nodes stay up | the same | 2 orders | 357 | the higher number does not wait |
//!
//! What the models do not have: time (what is kept for 300 s is kept), the length of queues and snapshots, disks that lie.
//! Groups are one machine in the first three models: that a group behaves like one is the subject of [`raft`] and the
//! simulator.

pub mod bootstrap;
pub mod explore;
pub mod fanout;
pub mod hosted;
pub mod machine;
pub mod policy;
pub mod raft;
pub mod release;
