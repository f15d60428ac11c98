//! Unary driver: one call at a time per worker, through a client library as most programs use it.

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
use crate::scenario::{
    LoadPlan, LoadScript, LoadWorker, Measured, Scenario, WorkerReply, WorkerRequest,
};

/// Additional time for a server that has stopped answering, before the run ends.
const GRACE: Duration = Duration::from_secs(3);

/// The client of one worker.
pub(crate) trait Caller {
    /// Makes one call and returns its reply.
    async fn call(
        &mut self,
        worker: &LoadWorker,
        ask: WorkerRequest,
    ) -> Result<WorkerReply, Status>;

    /// Waits for the grant after [`WorkerReply::Queued`].
    async fn grant(&mut self) -> Result<WorkerReply, Status>;
}

/// Runs a plan on one thread. `caller` creates the client of a worker.
pub(crate) fn run<C: Caller + 'static>(
    plan: LoadPlan,
    server: SocketAddr,
    caller: impl AsyncFn(Channel, &LoadWorker) -> Result<C, Status>,
) -> Result<Measured, BenchError> {
    let connect = async || {
        let endpoint = Endpoint::from_shared(format!("http://{server}"))?
            .tcp_nodelay(true)
            .connect_timeout(Duration::from_secs(5));
        Ok(endpoint.connect().await?)
    };
    run_over(plan, connect, caller)
}

/// Runs a plan over connections of any kind.
pub(crate) fn run_over<S: Clone, C: Caller + 'static>(
    plan: LoadPlan,
    connect: impl AsyncFn() -> Result<S, BenchError>,
    caller: impl AsyncFn(S, &LoadWorker) -> Result<C, Status>,
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
        let script = Rc::new(RefCell::new(LoadScript::new(plan)));
        let tasks = LocalSet::new();
        let mut workers = JoinSet::new();
        for number in 0..in_flight {
            let (worker, ask) = script.borrow_mut().worker(number);
            let channel = channels[number as usize % channels.len()].clone();
            let caller = caller(channel, &worker).await?;
            let script = Rc::clone(&script);
            workers.spawn_local_on(walk(script, caller, worker, ask), &tasks);
        }
        // The first worker that sees the end or an error ends the run: the others may be queued
        // behind a worker that has stopped.
        let first = tokio::time::timeout(longest, tasks.run_until(workers.join_next())).await;
        drop(workers);
        drop(tasks);
        let script = Rc::into_inner(script).ok_or(BenchError::Closed)?;
        let mut measured = script.into_inner().finish();
        match first {
            Ok(Some(Ok(ended))) => ended?,
            Ok(_) => {}
            // The server has stopped answering: the waiting time counts as measured time.
            Err(_) => measured.elapsed = longest.saturating_sub(warm_up),
        }
        // Answers on separate streams arrive in any order, so the client cannot detect overtaking.
        measured.overtakes = 0;
        Ok(measured)
    })
}

async fn walk(
    script: Rc<RefCell<LoadScript>>,
    mut caller: impl Caller,
    mut worker: LoadWorker,
    first: WorkerRequest,
) -> Result<(), BenchError> {
    let mut next = Some(first);
    while !script.borrow().is_over() {
        let reply = match next {
            Some(ask) => caller.call(&worker, ask).await,
            None => caller.grant().await,
        };
        let reply = reply.unwrap_or_else(|status| WorkerReply::Failed(status.to_string()));
        next = script
            .borrow_mut()
            .next(&mut worker, reply)
            .map_err(BenchError::Refused)?;
    }
    Ok(())
}

/// Client for the daemon's unary calls. In hot-handoff it also subscribes to the worker's events.
pub(crate) struct Unary {
    client: PathLockClient<Channel>,
    token: Option<tonic::metadata::MetadataValue<tonic::metadata::Ascii>>,
    events: Option<Streaming<v1::Event>>,
}

impl Unary {
    pub(crate) async fn new(
        channel: Channel,
        worker: &LoadWorker,
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
                owner_id: worker.owner.clone(),
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
    async fn call(
        &mut self,
        worker: &LoadWorker,
        ask: WorkerRequest,
    ) -> Result<WorkerReply, Status> {
        Ok(match ask {
            WorkerRequest::Take | WorkerRequest::Wait => {
                let request = self.request(message::acquire(worker, ask));
                message::acquired(self.client.acquire(request).await?.get_ref())
            }
            WorkerRequest::Release => {
                let request = self.request(message::release(worker));
                self.client.release(request).await?;
                WorkerReply::Done
            }
            WorkerRequest::Renew => {
                let request = self.request(message::renew(worker));
                message::renewed(self.client.renew(request).await?.get_ref())
            }
            WorkerRequest::Check => {
                let request = self.request(message::check(worker));
                message::checked(self.client.assert_fencing(request).await?.get_ref())
            }
        })
    }

    async fn grant(&mut self) -> Result<WorkerReply, Status> {
        let events = self
            .events
            .as_mut()
            .ok_or_else(|| Status::internal("queued without a subscription"))?;
        while let Some(event) = events.next().await {
            let event = event?;
            if event.r#type() == v1::EventType::Grant {
                return Ok(WorkerReply::Granted(event.fence));
            }
        }
        Err(Status::unavailable("the subscription ended"))
    }
}
