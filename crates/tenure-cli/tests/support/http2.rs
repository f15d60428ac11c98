//! HTTP/2 client under full control of the test: it never finishes a request or reads by itself.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

pub(crate) struct Http2 {
    sender: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    /// Connects without TLS.
    pub(crate) async fn connect(address: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = h2::client::Builder::new()
            .initial_max_send_streams(1024)
            .handshake(stream)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        Http2 { sender, connection }
    }

    /// Sends the head of a request whose body follows, or not.
    pub(crate) async fn begin(
        &mut self,
        request: Request<()>,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut sender = self.sender.clone().ready().await.unwrap();
        sender.send_request(request, false).unwrap()
    }

    /// Like `begin`, but the server may have closed the connection.
    pub(crate) async fn try_begin(
        &mut self,
        request: Request<()>,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        sender.send_request(request, false)
    }

    /// How many streams the server allows at once.
    pub(crate) fn max_streams(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// How the connection ended.
    pub(crate) async fn ended(&mut self) -> Result<(), h2::Error> {
        (&mut self.connection).await.unwrap()
    }
}

impl Drop for Http2 {
    /// Dropping the client ends the connection with everything in flight.
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// All of a body, and its length.
pub(crate) async fn body(response: ResponseFuture) -> (u16, Vec<u8>) {
    let (head, mut stream) = response.await.unwrap().into_parts();
    let mut body = Vec::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk.unwrap();
        stream.flow_control().release_capacity(chunk.len()).unwrap();
        body.extend_from_slice(&chunk);
    }
    (head.status.as_u16(), body)
}
