//! Sidecar locks by the managers of `tenure-files`, for programs that were written for `@openclaw/fs-safe`.
//!
//! `payload` and `shouldReclaim` are JavaScript functions that may return promises. They are called from a
//! thread that waits for their answers, never from the thread of JavaScript.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use napi_derive::napi;
use serde_json::{Value, json};
use tenure_files::sidecar::{
    Manager, Options, Retry, SidecarGuard, StaleCandidate, StalePolicy, peer_code,
};
use tenure_files::{Cancel, Durability, Error};

use crate::binding::{Binding, Shared, millis};

/// The options of an acquire by a manager.
#[napi(object)]
pub struct NativeSidecarOptions {
    /// What to protect.
    pub target_path: String,
    /// The lock file.
    pub lock_path: Option<String>,
    /// The age at which a lock may be called stale; infinite: never.
    pub stale_ms: Option<f64>,
    /// The deadline; infinite: none.
    pub timeout_ms: Option<f64>,
    /// Attempts after the first.
    pub retries: Option<f64>,
    /// Growth of the delay.
    pub factor: Option<f64>,
    /// First delay.
    pub min_timeout: Option<f64>,
    /// Longest delay.
    pub max_timeout: Option<f64>,
    /// Whether the delay is random.
    pub randomize: Option<bool>,
    /// Whether JavaScript has a function that returns the payload.
    pub has_payload: bool,
    /// Whether JavaScript judges staleness.
    pub has_should_reclaim: bool,
    /// Whether stale locks may be removed.
    pub remove_stale: bool,
    /// Whether JavaScript approves the removal of a stale lock.
    pub has_should_remove: bool,
    /// Whether the record is synced to disk.
    pub durable: Option<bool>,
}

/// A held lock, as `heldEntries` lists it.
#[napi(object)]
pub struct SidecarEntry {
    /// The normalized target.
    pub normalized_target_path: String,
    /// The lock file.
    pub lock_path: String,
    /// When it was acquired, in milliseconds since 1970.
    pub acquired_at: f64,
}

#[napi]
impl Binding {
    /// Acquires a lock through the manager `key`. Completes with its number, or with an error.
    #[napi]
    pub fn sidecar_acquire(
        &self,
        call: u32,
        key: String,
        options: NativeSidecarOptions,
    ) -> napi::Result<()> {
        let (options, failure) = self.sidecar_options(call, options)?;
        let shared = Arc::clone(&self.shared);
        // The options have been read, so a bad value is reported by the caller's promise as well.
        tenure_bindings::spawn(async move {
            let acquired = tenure_bindings::blocking(move || Manager::new(key).acquire(&options));
            let acquired = acquired.await;
            let failure = failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            match (acquired, failure) {
                // Dropping the guard releases the lock.
                (_, Some(failure)) => shared.send(call, "error", &failure),
                (Ok(guard), None) => {
                    let value = json!({
                        "lockPath": guard.lock_path(),
                        "normalizedTargetPath": guard.target(),
                        "hold": shared.keep(guard),
                    });
                    shared.send(call, "ok", &value);
                }
                (Err(error), None) => shared.send(call, "error", &failure_of(&error)),
            }
        });
        Ok(())
    }

    /// Releases a lock. Completes with null, or with an error.
    #[napi]
    pub fn sidecar_release(&self, call: u32, hold: u32) {
        let guard = self.shared.take(hold);
        let shared = Arc::clone(&self.shared);
        tenure_bindings::spawn(async move {
            let released =
                tenure_bindings::blocking(move || guard.map_or(Ok(()), SidecarGuard::release));
            match released.await {
                Ok(()) => shared.send(call, "ok", &Value::Null),
                Err(error) => shared.send(call, "error", &failure_of(&error)),
            }
        });
    }

    /// Checks that a lock is held now.
    #[napi]
    pub fn sidecar_verify(&self, hold: u32) -> bool {
        self.shared.verify(hold)
    }

    /// Lists the locks that the manager `key` holds.
    #[napi]
    pub fn sidecar_held(&self, key: String) -> Vec<SidecarEntry> {
        let entries = Manager::new(key).held_entries().into_iter();
        entries
            .map(|entry| SidecarEntry {
                normalized_target_path: text(entry.target()),
                lock_path: text(entry.lock_path()),
                acquired_at: since_epoch(entry.acquired_at()),
            })
            .collect()
    }

    /// Releases one lock of the manager `key` by force. Returns the error as JSON, or null.
    #[napi]
    pub fn sidecar_force_release(&self, key: String, lock_path: String) -> String {
        let entries = Manager::new(key).held_entries();
        let entry = entries
            .iter()
            .find(|entry| text(entry.lock_path()) == lock_path);
        match entry.map_or(Ok(()), tenure_files::sidecar::HeldEntry::force_release) {
            Ok(()) => Value::Null.to_string(),
            Err(error) => failure_of(&error).to_string(),
        }
    }

    /// Releases all locks of the manager `key` by force, before it returns.
    #[napi]
    pub fn sidecar_reset(&self, key: String) {
        Manager::new(key).reset();
    }
}

impl Binding {
    /// Reads options; also returns the place for an exception of a JavaScript function.
    fn sidecar_options(
        &self,
        call: u32,
        given: NativeSidecarOptions,
    ) -> napi::Result<(Options, Arc<Mutex<Option<Value>>>)> {
        let failure: Arc<Mutex<Option<Value>>> = Arc::default();
        let cancel = Cancel::new().map_err(|error| napi::Error::from_reason(error.to_string()))?;
        let ask = CallerFunctions {
            shared: Arc::clone(&self.shared),
            call,
            failure: Arc::clone(&failure),
            cancel: cancel.clone(),
        };
        let limit = |name: &str, value: Option<f64>| match value {
            Some(value) if value == f64::INFINITY => Ok(None),
            Some(value) => millis(name, value).map(Some),
            None => Ok(None),
        };
        let mut options = Options::new(&given.target_path)
            .timeout(limit("timeoutMs", given.timeout_ms)?)
            .cancel(cancel);
        if let Some(path) = given.lock_path {
            options = options.lock_path(path);
        }
        if given.stale_ms.is_some() {
            options = options.stale(limit("staleMs", given.stale_ms)?);
        }
        let usual = Retry::default();
        options = options.retry(Retry {
            retries: match given.retries {
                None => None,
                Some(retries) if retries == f64::INFINITY => None,
                Some(retries) if retries >= 0.0 && retries.fract() == 0.0 => {
                    // More than four billion attempts are no limit in practice.
                    #[allow(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "checked above; the cast saturates"
                    )]
                    Some(retries as u32)
                }
                Some(_) => {
                    let what = "retry.retries must be a non-negative safe integer";
                    return Err(napi::Error::from_reason(what));
                }
            },
            factor: given.factor.unwrap_or(usual.factor),
            min_timeout: match given.min_timeout {
                Some(min) => millis("retry.minTimeout", min)?,
                None => usual.min_timeout,
            },
            max_timeout: match given.max_timeout {
                Some(max) => millis("retry.maxTimeout", max)?,
                None => usual.max_timeout,
            },
            randomize: given.randomize.unwrap_or(usual.randomize),
        });
        if given.durable == Some(false) {
            options = options.durability(Durability::Fast);
        }
        if given.has_payload {
            let ask = ask.clone();
            options = options.payload(move || {
                ask.ask("payload", json!({}))
                    .and_then(|value| match value {
                        Value::Object(payload) => Some(payload),
                        _ => None,
                    })
                    .unwrap_or_default()
            });
        }
        if given.remove_stale {
            options = options.recovery(StalePolicy::RemoveIfUnchanged);
        }
        if given.has_should_reclaim {
            let ask = ask.clone();
            options = options.should_reclaim(move |candidate| {
                let asked = ask.ask("shouldReclaim", question(candidate));
                asked == Some(Value::Bool(true))
            });
        }
        if given.has_should_remove {
            let ask = ask.clone();
            options = options.approve(move |candidate| {
                let snapshot = json!({
                    "lockPath": candidate.lock_path,
                    "normalizedTargetPath": candidate.target,
                    "raw": String::from_utf8_lossy(candidate.bytes),
                    "payload": candidate.payload,
                });
                let asked = ask.ask("shouldRemoveStaleLock", snapshot);
                asked == Some(Value::Bool(true))
            });
        } else if given.has_should_reclaim {
            // Without an approval of its own, the caller's judgement is the approval.
            options = options
                .recovery(StalePolicy::RemoveIfUnchanged)
                .approve(|_| true);
        }
        Ok((options, failure))
    }
}

impl Shared {
    fn keep(&self, guard: SidecarGuard) -> u32 {
        let number = self.next();
        let mut holds = self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        holds.insert(number, guard);
        number
    }

    fn take(&self, hold: u32) -> Option<SidecarGuard> {
        let mut holds = self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        holds.remove(&hold)
    }

    fn verify(&self, hold: u32) -> bool {
        let holds = self.sidecars.lock().unwrap_or_else(PoisonError::into_inner);
        holds
            .get(&hold)
            .is_some_and(|guard| guard.verify_still_held().is_ok())
    }
}

/// The functions of the caller, for one acquire.
#[derive(Clone)]
struct CallerFunctions {
    shared: Arc<Shared>,
    call: u32,
    /// The exception of a function. The acquire ends with it.
    failure: Arc<Mutex<Option<Value>>>,
    cancel: Cancel,
}

impl CallerFunctions {
    /// Calls a function and waits for its value. `None` if it threw an exception.
    fn ask(&self, kind: &'static str, value: Value) -> Option<Value> {
        let mut answered = self.shared.question(self.call, kind, value)?;
        if answered.get("error").is_some() {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(answered);
            self.cancel.cancel();
            return None;
        }
        Some(answered["value"].take())
    }
}

fn question(candidate: &StaleCandidate<'_>) -> Value {
    json!({
        "lockPath": candidate.lock_path,
        "normalizedTargetPath": candidate.target,
        "payload": candidate.payload,
        "staleMs": candidate.stale.map(as_millis),
        "nowMs": since_epoch(candidate.now),
        "heldByThisProcess": candidate.held_by_this_process,
    })
}

/// The error as the package reports it, with the code of the original where it has one.
fn failure_of(error: &Error) -> Value {
    json!({
        "class": error.class().name(),
        "code": peer_code(error.class()),
        "message": error.to_string(),
        "path": error.path(),
    })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn as_millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn since_epoch(time: std::time::SystemTime) -> f64 {
    as_millis(time.duration_since(UNIX_EPOCH).unwrap_or_default()).floor()
}
