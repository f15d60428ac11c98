'use strict';

// Sidecar locks with the API of @openclaw/fs-safe: a program changes one import.
//
// The protocol is in the add-on. Here are the functions of the caller, the count of nested acquisitions and the
// diagnostics.

const { realpathSync } = require('node:fs');
const path = require('node:path');
const { binding, run } = require('./calls.cjs');

/** What this process holds, by manager key and normalized target. */
const managers = new Map();

function table(key) {
  let held = managers.get(key);
  if (held === undefined) {
    held = new Map();
    managers.set(key, held);
  }
  return held;
}

let hasExitHandler = false;

function releaseOnExit() {
  if (hasExitHandler) return;
  hasExitHandler = true;
  process.on('exit', () => {
    for (const key of managers.keys()) reset(key);
  });
}

function reset(key) {
  binding.sidecarReset(key);
  for (const entry of table(key).values()) {
    entry.count = 0;
    // The file is gone; the add-on forgets the hold.
    binding.sidecarRelease(0, entry.hold);
  }
  table(key).clear();
}

function normalized(targetPath) {
  const absolute = path.resolve(targetPath);
  try {
    return path.join(realpathSync(path.dirname(absolute)), path.basename(absolute));
  } catch {
    return absolute;
  }
}

/** The error of a failed acquire, with the code and the text of the original where it has one. */
function failure(options, fields) {
  if (fields.thrown !== undefined) return fields.thrown;
  const normalizedTargetPath = normalized(options.targetPath);
  const lockPath =
    options.lockPath === undefined ? `${normalizedTargetPath}.lock` : path.resolve(options.lockPath);
  const texts = {
    file_lock_timeout: `file lock timeout for ${normalizedTargetPath}`,
    file_lock_stale: `file lock stale for ${normalizedTargetPath}`,
  };
  const error = new Error(texts[fields.code] ?? fields.message);
  error.code = fields.code ?? fields.class;
  error.lockPath = lockPath;
  error.normalizedTargetPath = normalizedTargetPath;
  if (texts[fields.code]) error.cause = new Error(fields.message);
  return error;
}

function checked(options) {
  if (typeof options.targetPath !== 'string' || options.targetPath === '') {
    throw new TypeError('targetPath must be a path');
  }
  const { retries } = options.retry ?? {};
  if (retries !== undefined && retries !== Infinity && !(Number.isSafeInteger(retries) && retries >= 0)) {
    throw new TypeError('retry.retries must be a non-negative safe integer');
  }
}

async function acquire(key, options) {
  checked(options);
  releaseOnExit();
  const held = table(key);
  const again = options.allowReentrant ? held.get(normalized(options.targetPath)) : undefined;
  if (again !== undefined && again.count > 0 && binding.sidecarVerify(again.hold)) {
    again.count += 1;
    return handle(key, again);
  }
  // An exception of the caller's functions cannot cross the add-on: it waits here.
  let thrown;
  const functions = {
    payload: options.payload,
    shouldReclaim:
      options.shouldReclaim && ((params) => options.shouldReclaim({ ...params, staleMs: params.staleMs ?? Infinity })),
    shouldRemoveStaleLock: options.shouldRemoveStaleLock,
  };
  const ask = async (kind, { question, ...params }) => {
    let answer;
    try {
      const value = await functions[kind](kind === 'payload' ? undefined : params);
      answer = { value: kind === 'payload' ? value : Boolean(value) };
    } catch (error) {
      thrown ??= { error };
      answer = { error: String(error) };
    }
    binding.answer(question, JSON.stringify(answer));
  };
  const retry = options.retry ?? {};
  const fields = await run(
    (call) =>
      binding.sidecarAcquire(call, key, {
        targetPath: options.targetPath,
        lockPath: options.lockPath,
        staleMs: options.staleMs,
        timeoutMs: options.timeoutMs,
        retries: retry.retries,
        factor: retry.factor,
        minTimeout: retry.minTimeout,
        maxTimeout: retry.maxTimeout,
        randomize: retry.randomize,
        hasPayload: options.payload !== undefined,
        removeStale: options.staleRecovery === 'remove-if-unchanged',
        hasShouldReclaim: options.shouldReclaim !== undefined,
        hasShouldRemove: options.shouldRemoveStaleLock !== undefined,
        durable: options.durable,
      }),
    {
      ask,
      makeError: (value) => (thrown ? thrown.error : failure(options, value)),
    },
  );
  const entry = {
    hold: fields.hold,
    lockPath: fields.lockPath,
    normalizedTargetPath: fields.normalizedTargetPath,
    acquiredAt: Date.now(),
    metadata: options.metadata ?? {},
    count: 1,
  };
  held.set(entry.normalizedTargetPath, entry);
  return handle(key, entry);
}

/** Removes the lock file of an entry, unless it has been released. */
async function release(key, entry) {
  const held = table(key);
  if (held.get(entry.normalizedTargetPath) === entry) held.delete(entry.normalizedTargetPath);
  // As with the original, a lock that was lost is left as it is, without an error.
  await run((call) => binding.sidecarRelease(call, entry.hold)).catch(() => {});
}

function handle(key, entry) {
  let isReleased = false;
  const once = async () => {
    if (isReleased || entry.count === 0) return;
    isReleased = true;
    entry.count -= 1;
    if (entry.count === 0) await release(key, entry);
  };
  return {
    lockPath: entry.lockPath,
    normalizedTargetPath: entry.normalizedTargetPath,
    release: once,
    [Symbol.asyncDispose]: once,
  };
}

function createSidecarLockManager(key) {
  const forceRelease = async (entry) => {
    if (entry.count === 0) return false;
    entry.count = 0;
    await release(key, entry);
    return true;
  };
  return {
    acquire: (options) => acquire(key, options),
    async withLock(options, fn) {
      const held = await acquire(key, options);
      try {
        return await fn();
      } finally {
        await held.release();
      }
    },
    async drain() {
      await Promise.all(Array.from(table(key).values(), forceRelease));
    },
    reset: () => reset(key),
    heldEntries: () =>
      Array.from(table(key).values(), (entry) => ({
        normalizedTargetPath: entry.normalizedTargetPath,
        lockPath: entry.lockPath,
        acquiredAt: entry.acquiredAt,
        metadata: entry.metadata,
        forceRelease: () => forceRelease(entry),
      })),
  };
}

async function withSidecarLock(targetPath, { managerKey = 'withSidecarLock', ...options }, fn) {
  return createSidecarLockManager(managerKey).withLock({ ...options, targetPath }, fn);
}

module.exports = { createSidecarLockManager, withSidecarLock };
