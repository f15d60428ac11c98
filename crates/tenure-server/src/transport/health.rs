//! Standard gRPC health service (E11: health checking and reflection): orchestrators use it without
//! knowing Tenure.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::grpc::Grpc;

/// Polling interval of a watched status.
const LOOK: Duration = Duration::from_secs(1);

/// Names that have a status: the server as a whole, and the lock service.
const SERVICES: [&str; 2] = ["", "pathlockd.v1.PathLock"];

/// Creates the health service of a daemon. Its status is that of the `Health` RPC.
pub(crate) fn service(grpc: &Grpc) -> HealthServer<HealthService> {
    HealthServer::new(HealthService { grpc: grpc.clone() })
}

pub(crate) struct HealthService {
    grpc: Grpc,
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(status(&self.grpc).await))
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = SERVICES.contains(&request.get_ref().service.as_str());
        let grpc = self.grpc.clone();
        // Sends the current status first, then every change.
        let stream = futures_util::stream::unfold((grpc, None), move |(grpc, last)| async move {
            loop {
                let now = if known {
                    status(&grpc).await
                } else {
                    HealthCheckResponse {
                        status: ServingStatus::ServiceUnknown.into(),
                    }
                };
                if last != Some(now.status) {
                    return Some((Ok(now), (grpc, Some(now.status))));
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Ok(Response::new(self.grpc.until_stop(stream)))
    }
}

async fn status(grpc: &Grpc) -> HealthCheckResponse {
    let ready = grpc.is_ready().await;
    let status = if ready {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    };
    HealthCheckResponse {
        status: status.into(),
    }
}
