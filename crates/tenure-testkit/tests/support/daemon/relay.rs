//! TCP relay between client and daemon: passes, holds back or cuts the traffic.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use tenure::Endpoint;

/// What happens to the traffic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Passes in both directions.
    Passes,
    /// Held back in both directions until it passes again. Connections stay open.
    Held,
    /// Only the daemon's traffic is held back: requests arrive, answers do not.
    AnswersHeld,
}

/// A relay. Its threads end with its connections.
pub(crate) struct Relay {
    pub(crate) node: Endpoint,
    shared: Arc<Shared>,
}

struct Shared {
    traffic: Mutex<Traffic>,
    changed: Condvar,
    connections: Mutex<Vec<TcpStream>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Client,
    Daemon,
}

impl Relay {
    pub(crate) fn to(node: &Endpoint) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            traffic: Mutex::new(Traffic::Passes),
            changed: Condvar::new(),
            connections: Mutex::default(),
        });
        let (target, inner) = (node.to_string(), Arc::clone(&shared));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(daemon) = TcpStream::connect(&target) else {
                    continue;
                };
                pump(&client, &daemon, From::Client, &inner);
                pump(&daemon, &client, From::Daemon, &inner);
                inner.connections.lock().unwrap().extend([client, daemon]);
            }
        });
        Relay {
            node: Endpoint::new("127.0.0.1", address.port()),
            shared,
        }
    }

    pub(crate) fn set(&self, traffic: Traffic) {
        *self.shared.traffic.lock().unwrap() = traffic;
        self.shared.changed.notify_all();
    }

    /// Closes all present connections.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn pump(from: &TcpStream, to: &TcpStream, side: From, shared: &Arc<Shared>) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let mut buffer = [0; 16_384];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            shared.wait_until_passing(side);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Shared {
    fn wait_until_passing(&self, side: From) {
        let mut traffic = self.traffic.lock().unwrap();
        while match *traffic {
            Traffic::Passes => false,
            Traffic::Held => true,
            Traffic::AnswersHeld => side == From::Daemon,
        } {
            traffic = self.changed.wait(traffic).unwrap();
        }
    }
}
