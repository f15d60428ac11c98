'use strict';

// Guards of held locks.

const { EventEmitter } = require('node:events');
const { binding, listeners, run } = require('./calls.cjs');
const { errorOf, requestOf } = require('./errors.cjs');

// A guard without references is released in the background, like a guard that is dropped in Rust.
const collected = new FinalizationRegistry((number) => {
  listeners.delete(number);
  binding.dropGuard(number);
});

class Guard extends EventEmitter {
  #number;
  #state;
  #released;
  #isListening = false;
  #abort;
  #direct;

  constructor(fields, { direct = false } = {}) {
    super();
    this.#number = fields.guard;
    this.#state = fields;
    this.#direct = direct;
    collected.register(this, fields.guard, this);
    this.on('newListener', () => this.#listen());
  }

  get address() {
    return this.#state.address;
  }

  get mode() {
    return this.#state.mode;
  }

  get owner() {
    return this.#state.owner;
  }

  get lockFile() {
    return this.#state.lock_file ?? undefined;
  }

  /** The newest fence. It stays readable after the release. */
  get fence() {
    if (this.#released === undefined) this.#state.fence = this.#now().fence ?? this.#state.fence;
    return this.#state.fence ?? undefined;
  }

  get held() {
    return this.#released === undefined && this.#now().held;
  }

  get validForMs() {
    if (this.#released !== undefined) return 0;
    const left = this.#now().valid_for_ms;
    return left < 0 ? Infinity : left;
  }

  get releaseRequest() {
    if (this.#released !== undefined) return undefined;
    const request = this.#now().requested;
    return request ? requestOf(request) : undefined;
  }

  /** A signal that is aborted when the lock is lost; its reason is the error. */
  get signal() {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      this.#listen();
    }
    return this.#abort.signal;
  }

  async check() {
    await run((call) => binding.check(call, this.#number));
  }

  async lost() {
    if (this.#released !== undefined) return null;
    const fields = await run((call) => binding.lost(call, this.#number), { background: true });
    return fields ? errorOf(fields) : null;
  }

  async releaseRequested() {
    if (this.#released !== undefined) return null;
    const start = (call) => binding.releaseRequested(call, this.#number);
    const fields = await run(start, { background: true });
    return fields ? requestOf(fields) : null;
  }

  /** Releases the lock. Further calls return the same promise. */
  release() {
    this.#released ??= this.#release();
    return this.#released;
  }

  async #release() {
    try {
      if (this.#direct) {
        const result = JSON.parse(binding.releaseFile(this.#number));
        if (result) throw errorOf(result.error);
      } else {
        await run((call) => binding.release(call, this.#number));
      }
    } finally {
      collected.unregister(this);
      listeners.delete(this.#number);
      binding.dropGuard(this.#number);
    }
  }

  async [Symbol.asyncDispose]() {
    await this.release();
  }

  #now() {
    return JSON.parse(binding.guardState(this.#number));
  }

  #listen() {
    if (this.#isListening || this.#released !== undefined) return;
    this.#isListening = true;
    // The table must not keep the guard alive: its end releases the lock.
    const weak = new WeakRef(this);
    listeners.set(this.#number, (kind, event) => weak.deref()?.#tell(kind, event));
    binding.listen(this.#number);
  }

  #seen = new Set();

  #tell(kind, event) {
    if (kind === 'renewed') {
      this.emit('renewed', { ttlMs: event.ttl_ms });
      return;
    }
    // The library may report a present fact twice.
    if (this.#seen.has(kind)) return;
    this.#seen.add(kind);
    if (kind === 'asked') {
      this.emit('releaseRequested', requestOf(event));
    } else {
      const lost = errorOf(event);
      this.#abort?.abort(lost);
      this.emit('lost', lost);
    }
  }
}

class Guards {
  #number;
  #released;

  constructor(fields) {
    this.#number = fields.guard;
    collected.register(this, fields.guard, this);
  }

  #now() {
    return JSON.parse(binding.guardState(this.#number));
  }

  /** Address, mode and fence of each lock, in the order of the request. */
  get entries() {
    if (this.#released !== undefined) return [];
    return this.#now().entries.map((entry) => ({ ...entry, fence: entry.fence ?? undefined }));
  }

  get validForMs() {
    if (this.#released !== undefined) return 0;
    const left = this.#now().valid_for_ms;
    return left < 0 ? Infinity : left;
  }

  async add(address) {
    await run((call) => binding.add(call, this.#number, String(address)));
  }

  async remove(address) {
    await run((call) => binding.remove(call, this.#number, String(address)));
  }

  async check() {
    await run((call) => binding.check(call, this.#number));
  }

  async lost() {
    if (this.#released !== undefined) return null;
    const fields = await run((call) => binding.lost(call, this.#number), { background: true });
    return fields ? errorOf(fields) : null;
  }

  release() {
    this.#released ??= this.#release();
    return this.#released;
  }

  async #release() {
    try {
      await run((call) => binding.release(call, this.#number));
    } finally {
      collected.unregister(this);
      binding.dropGuard(this.#number);
    }
  }

  async [Symbol.asyncDispose]() {
    await this.release();
  }
}

module.exports = { Guard, Guards };
