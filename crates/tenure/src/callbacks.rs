//! Executor thread for callbacks of the program: listeners of guards, progress of waiting requests.
//!
//! They run on one thread of their own, in the order of their events. So a callback that blocks or
//! panics stops no renewal, and it may use the blocking API.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

type Callback = Box<dyn FnOnce() + Send>;

/// The queue of the thread and the process that it belongs to. A child of `fork` has no threads of
/// its parent and starts its own.
static QUEUE: Mutex<Option<(u32, Sender<Callback>)>> = Mutex::new(None);

/// Calls `callback` on the callback thread. Starts the thread if necessary.
pub(crate) fn post(callback: impl FnOnce() + Send + 'static) {
    let callback: Callback = Box::new(callback);
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    let callback = match &*queue {
        Some((of, sender)) if *of == pid => match sender.send(callback) {
            Ok(()) => return,
            Err(unsent) => unsent.0,
        },
        _ => callback,
    };
    let (sender, callbacks) = channel::<Callback>();
    let started = std::thread::Builder::new()
        .name("tenure-callback".into())
        .spawn(move || {
            for callback in callbacks {
                // The panic hook has reported it. Later callbacks must still run: one of them may
                // report a loss.
                let _ = catch_unwind(AssertUnwindSafe(callback));
            }
        });
    match started {
        Ok(_) => {
            let _ = sender.send(callback);
            *queue = Some((pid, sender));
        }
        // No thread is left. A loss must still be reported, so this one runs the callback.
        Err(_) => {
            drop(queue);
            let _ = catch_unwind(AssertUnwindSafe(callback));
        }
    }
}
