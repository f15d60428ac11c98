//! Fast path for AssertFencing (is this owner's token still current?) in single-voter groups.
//!
//! A single voter needs no ReadIndex round to confirm its leadership. If all committed entries and
//! proposed expirations are applied, the node answers from the state machine at once. This saves
//! the bookkeeping of the client call, its operation on the group, and the round.

use tenure_core::path::Path;
use tenure_core::query::FenceCheck;
use tenure_core::space::Space;
use tenure_core::value::{Fence, OwnerId};

use crate::GroupId;
use crate::node::Node;
use crate::request::{Answer, AssertAnswer, ClientRequest};

impl Node {
    /// Answers a read without a call, from the state after the last step. That step must have
    /// started after the read was received. Returns `None` if the read has to be submitted as a
    /// call.
    pub fn answer_now(&mut self, request: &ClientRequest) -> Option<Answer> {
        if self.has_stopped() {
            return None;
        }
        self.read_at_once(request)
    }

    /// Answers a read if all groups that it needs are led by this node as the only voter, with
    /// everything applied. Otherwise it becomes a call.
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

    /// Checks path by path. Paths behind the first that fails are not read: it decides
    /// ([`AssertAnswer::of`]).
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
            let check = space.assert_fencing(&route.namespace, owner, path, fence);
            if check != FenceCheck::Valid {
                return Some(AssertAnswer::of(Some((path, check))));
            }
        }
        Some(AssertAnswer::of(None))
    }

    fn space_at_once(&self, group: GroupId) -> Option<&Space> {
        self.group_ref(group)?.confirmed_at_once()?.space()
    }
}
