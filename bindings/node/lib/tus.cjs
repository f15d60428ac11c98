'use strict';

// Lockers for @tus/server.

const { Client, Busy, TenureError } = require('./index.cjs');

/** What @tus/server answers with when the lock was not acquired in time. */
function lockTimeout(cause) {
  const error = new Error('failed to acquire lock before timeout', { cause });
  error.status_code = 500;
  error.body = 'failed to acquire lock before timeout';
  return error;
}

class TenureLock {
  #client;
  #address;
  #timeoutMs;
  #guard;

  constructor(client, address, timeoutMs) {
    this.#client = client;
    this.#address = address;
    this.#timeoutMs = timeoutMs;
  }

  /** Acquires the lock and asks its holder to release it. `requestRelease` is called when another request asks. */
  async lock(signal, requestRelease) {
    let guard;
    try {
      guard = await this.#client.lock(this.#address, {
        waitMs: this.#timeoutMs,
        ask: true,
        signal,
        purpose: 'tus request',
      });
    } catch (error) {
      // An aborted request has no client that could read another answer.
      if (error instanceof Busy || signal?.aborted) throw lockTimeout(error);
      throw error;
    }
    this.#guard = guard;
    guard.on('releaseRequested', () => void requestRelease());
    // A request that has lost its lock must stop as well.
    guard.on('lost', () => void requestRelease());
  }

  async unlock() {
    const guard = this.#guard;
    this.#guard = undefined;
    if (guard === undefined) throw new Error('Releasing an unlocked lock!');
    try {
      await guard.release();
    } catch (error) {
      // The request has been served; a lock that is lost is released already.
      if (!(error instanceof TenureError)) throw error;
    }
  }
}

/** Locks the uploads of a directory with files, for all servers that share it; compatible with tusd's file locker. */
class UploadFileLocker {
  #client;
  #directory;
  #timeoutMs;

  constructor({ directory, acquireLockTimeout = 20_000, client = new Client() }) {
    this.#client = client;
    this.#directory = directory;
    this.#timeoutMs = acquireLockTimeout;
  }

  newLock(id) {
    return new TenureLock(this.#client, `upload:${this.#directory}#${id}`, this.#timeoutMs);
  }
}

/** Locks uploads on a daemon, for servers on any machine and any store. */
class DaemonLocker {
  #client;
  #prefix;
  #timeoutMs;

  constructor({ prefix = 'tus:/uploads', acquireLockTimeout = 20_000, client = new Client() } = {}) {
    this.#client = client;
    this.#prefix = prefix;
    this.#timeoutMs = acquireLockTimeout;
  }

  newLock(id) {
    // One segment: an upload must not lock those below it.
    return new TenureLock(this.#client, `${this.#prefix}/${encodeURIComponent(id)}`, this.#timeoutMs);
  }
}

module.exports = { DaemonLocker, UploadFileLocker };
