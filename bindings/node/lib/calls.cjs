'use strict';

// Calls of the add-on as promises. One function receives all results and events of this environment.

const { Binding } = require('./native.cjs');
const { errorOf } = require('./errors.cjs');

const calls = new Map();
const listeners = new Map();
let lastCall = 0;

// The add-on does not keep the event loop alive by itself, so that a program can end while it holds a lock.
// A call that a program awaits must keep it alive.
const keepAlive = setInterval(() => {}, 2 ** 30);
keepAlive.unref();
let awaited = 0;

function hold() {
  if (awaited++ === 0) keepAlive.ref();
}

function letGo() {
  if (--awaited === 0) keepAlive.unref();
}

const binding = new Binding((number, kind, json) => {
  const value = JSON.parse(json);
  if (kind === 'renewed' || kind === 'asked' || kind === 'lost') {
    listeners.get(number)?.(kind, value);
    return;
  }
  const call = calls.get(number);
  if (kind === 'ok' || kind === 'error') {
    if (call) finish(number, call, kind, value);
    else if (kind === 'ok') discard(value);
  } else if (call) {
    call.ask(kind, value);
  } else if (value?.question !== undefined) {
    binding.answer(value.question, '{"error":"the call was cancelled"}');
  }
});

function finish(number, call, kind, value) {
  forget(number, call);
  if (kind === 'ok') call.resolve(value);
  else call.reject(call.errorOf(value));
}

/** Returns what a cancelled call acquired nevertheless. */
function discard(value) {
  if (value?.guard !== undefined) binding.dropGuard(value.guard);
  if (value?.watch !== undefined) binding.dropWatch(value.watch);
  if (value?.hold !== undefined) binding.sidecarRelease(0, value.hold);
}

function forget(number, call) {
  calls.delete(number);
  if (call.background !== true) letGo();
  call.signal?.removeEventListener('abort', call.abort);
}

/**
 * Runs a call.
 *
 * `start(number)` begins it. `signal` cancels it. A `background` call does not keep the process alive. `ask` gets the
 * messages that come before the result.
 */
function run(start, { signal, background = false, ask = () => {}, makeError = errorOf } = {}) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    do lastCall = (lastCall + 1) >>> 0;
    while (lastCall === 0 || calls.has(lastCall));
    const number = lastCall;
    const call = { resolve, reject, signal, background, ask, errorOf: makeError };
    call.abort = () => {
      forget(number, call);
      binding.cancel(number);
      reject(signal.reason);
    };
    calls.set(number, call);
    if (!background) hold();
    signal?.addEventListener('abort', call.abort, { once: true });
    try {
      start(number);
    } catch (error) {
      forget(number, call);
      reject(invalid(error));
    }
  });
}

/** The add-on refuses wrong values of options with a plain error. */
function invalid(error) {
  return errorOf({ kind: 'input', class: 'BadInput', message: error.message, about: '', what: error.message });
}

module.exports = { binding, invalid, listeners, run };
