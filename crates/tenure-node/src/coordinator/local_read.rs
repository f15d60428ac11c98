//! Fast path for AssertFencing in a single-voter group.
//!
//! A single voter has no peers to confirm its leadership with. If its group has no unapplied work,
//! the node answers the read directly from the state machine, without creating a call, an operation
//! and a ReadIndex waiter.

use tenure_core::path::Path;
use tenure_core::query::FenceCheck;
use tenure_core::space::Space;
use tenure_core::value::{Fence, OwnerId};

use crate::GroupId;
use crate::node::Node;
use crate::request::{Answer, AssertAnswer, ClientRequest};

impl Node {
    /// The answer to a read that needs no call: as of the last step, which must have come after the read. Nothing
    /// where the read has to be called after all.
    pub fn answer_now(&mut self, request: &ClientRequest) -> Option<Answer> {
        if self.has_stopped() {
            return None;
        }
        self.read_at_once(request)
    }

    /// The answer to a read, if everything that it rests on is here and applied. Otherwise it waits
    /// its turn as a call.
    pub(super) fn read_at_once(&mut self, request: &ClientRequest) -> Option<Answer> {
        match request {
            ClientRequest::AssertFencing {
                owner,
                fence: Some(fence),
                paths,
            } if self.coordinator.resolve.is_loaded() => self
                .assert_at_once(owner, *fence, paths)
                .map(Answer::AssertFencing),
            _ => None,
        }
    }

    /// The first path that fails decides (R73: AssertFencing checks owner and token): those behind
    /// it need not be looked at.
    fn assert_at_once(
        &mut self,
        owner: &OwnerId,
        fence: Fence,
        paths: &[Path],
    ) -> Option<AssertAnswer> {
        for path in paths {
            let (route, group) = self.route(path);
            let space = self.space_at_once(group)?;
            if space.route_outdated(&route, path).is_some() {
                return None;
            }
            match space.assert_fencing(&route.namespace, owner, path, fence) {
                FenceCheck::Valid => {}
                FenceCheck::StaleOwner => return Some(AssertAnswer::StaleOwner(path.clone())),
                FenceCheck::StaleFence { .. } => {
                    return Some(AssertAnswer::StaleFence(path.clone()));
                }
            }
        }
        Some(AssertAnswer::Valid)
    }

    fn space_at_once(&self, group: GroupId) -> Option<&Space> {
        self.group_ref(group)?.confirmed_at_once()?.space()
    }
}
