//! One call after the other per lane, over a gRPC library as most clients use one.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::task::{JoinSet, LocalSet};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::BenchError;
use crate::message;
use crate::scenario::{Ask, Lane, Measured, Plan, Reply, Scenario, Script};

/// A server that answers nobody is waited for no longer than this.
const GRACE: Duration = Duration::from_secs(3);

/// What one lane calls with.
pub(crate) trait Caller {
    /// Makes one call.
    async fn call(&mut self, lane: &Lane, ask: Ask) -> Result<Reply, Status>;

    /// Waits for the grant after [`Reply::Queued`].
    async fn grant(&mut self) -> Result<Reply, Status>;
}

/// Runs a plan on one thread; `caller` makes what the lane of that number calls with.
pub(crate) fn run<C: Caller + 'static>(
    plan: Plan,
    server: SocketAddr,
    caller: impl AsyncFn(Channel, &Lane) -> Result<C, Status>,
) -> Result<Measured, BenchError> {
    let connect = async || {
        let endpoint = Endpoint::from_shared(format!("http://{server}"))?
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5));
        Ok(endpoint.connect().await?)
    };
    run_over(plan, connect, caller)
}

/// The same over connections of any kind.
pub(crate) fn run_over<S: Clone, C: Caller + 'static>(
    plan: Plan,
    connect: impl AsyncFn() -> Result<S, BenchError>,
    caller: impl AsyncFn(S, &Lane) -> Result<C, Status>,
) -> Result<Measured, BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut channels = Vec::new();
        for _ in 0..plan.connections.clamp(1, plan.in_flight.max(1)) {
            channels.push(connect().await?);
        }
        let (in_flight, warm_up) = (plan.in_flight, plan.warm_up());
        let longest = plan.longest().saturating_add(GRACE);
        let script = Rc::new(RefCell::new(Script::new(plan)));
        let tasks = LocalSet::new();
        let mut lanes = JoinSet::new();
        for number in 0..in_flight {
            let (lane, ask) = script.borrow_mut().lane(number);
            let channel = channels[number as usize % channels.len()].clone();
            let caller = caller(channel, &lane).await?;
            let script = Rc::clone(&script);
            lanes.spawn_local_on(walk(script, caller, lane, ask), &tasks);
        }
        // When one lane has seen the end, or an error, all have enough: others may wait in line for
        // somebody who has stopped.
        let first = tokio::time::timeout(longest, tasks.run_until(lanes.join_next())).await;
        drop(lanes);
        drop(tasks);
        let script = Rc::into_inner(script).ok_or(BenchError::Closed)?;
        let mut measured = script.into_inner().finish();
        match first {
            Ok(Some(Ok(ended))) => ended?,
            Ok(_) => {}
            // Nobody is answered any more: all of that time counts.
            Err(_) => measured.elapsed = longest.saturating_sub(warm_up),
        }
        // Calls on streams of their own are answered in any order, so a client cannot tell.
        measured.overtakes = 0;
        Ok(measured)
    })
}

async fn walk(
    script: Rc<RefCell<Script>>,
    mut caller: impl Caller,
    mut lane: Lane,
    first: Ask,
) -> Result<(), BenchError> {
    let mut next = Some(first);
    while !script.borrow().is_over() {
        let reply = match next {
            Some(ask) => caller.call(&lane, ask).await,
            None => caller.grant().await,
        };
        let reply = reply.unwrap_or_else(|status| Reply::Failed(status.to_string()));
        next = script
            .borrow_mut()
            .next(&mut lane, reply)
            .map_err(BenchError::Refused)?;
    }
    Ok(())
}

/// The daemon's unary calls; where lanes wait in line, with a subscription each.
pub(crate) struct Unary {
    client: PathLockClient<Channel>,
    token: Option<tonic::metadata::MetadataValue<tonic::metadata::Ascii>>,
    events: Option<Streaming<v1::Event>>,
}

impl Unary {
    pub(crate) async fn new(
        channel: Channel,
        lane: &Lane,
        scenario: Scenario,
        token: Option<&str>,
    ) -> Result<Unary, Status> {
        let token = match token {
            Some(token) => Some(
                format!("Bearer {token}")
                    .parse()
                    .map_err(|_| Status::invalid_argument("the token cannot be sent"))?,
            ),
            None => None,
        };
        let mut unary = Unary {
            client: PathLockClient::new(channel),
            token,
            events: None,
        };
        if scenario == Scenario::HotHandoff {
            let request = unary.request(v1::SubscribeRequest {
                owner_id: lane.owner.clone(),
            });
            unary.events = Some(unary.client.subscribe(request).await?.into_inner());
        }
        Ok(unary)
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }
}

impl Caller for Unary {
    async fn call(&mut self, lane: &Lane, ask: Ask) -> Result<Reply, Status> {
        Ok(match ask {
            Ask::Take | Ask::Wait => {
                let request = self.request(message::acquire(lane, ask));
                message::acquired(self.client.acquire(request).await?.get_ref())
            }
            Ask::Release => {
                let request = self.request(message::release(lane));
                self.client.release(request).await?;
                Reply::Done
            }
            Ask::Renew => {
                let request = self.request(message::renew(lane));
                message::renewed(self.client.renew(request).await?.get_ref())
            }
            Ask::Check => {
                let request = self.request(message::check(lane));
                message::checked(self.client.assert_fencing(request).await?.get_ref())
            }
        })
    }

    async fn grant(&mut self) -> Result<Reply, Status> {
        let events = self
            .events
            .as_mut()
            .ok_or_else(|| Status::internal("queued without a subscription"))?;
        while let Some(event) = events.next().await {
            let event = event?;
            if event.r#type() == v1::EventType::Grant {
                return Ok(Reply::Granted(event.fence));
            }
        }
        Err(Status::unavailable("the subscription ended"))
    }
}
