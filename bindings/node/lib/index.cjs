'use strict';

// Locks for files, repositories and clusters behind one API.

const path = require('node:path');
const { binding, invalid, run } = require('./calls.cjs');
const errors = require('./errors.cjs');
const { Guard, Guards } = require('./guard.cjs');

const { blockerOf, changeOf, errorOf, stateOf } = errors;

function modeOf({ mode, shared, sharedTree, permits }) {
  const chosen = [mode !== undefined, shared === true, sharedTree === true].filter(Boolean).length;
  if (chosen > 1 || (permits !== undefined && (shared || sharedTree))) {
    throw invalid(new Error('mode, shared, sharedTree and permits exclude each other: give one of them'));
  }
  if (shared) return 'shared';
  if (sharedTree) return 'shared-tree';
  return mode;
}

function nativeOptions(options) {
  return {
    mode: modeOf(options),
    permits: options.permits,
    waitMs: options.waitMs,
    ttlMs: options.ttlMs,
    ask: options.ask,
    purpose: options.purpose,
    labels: options.labels && JSON.stringify(options.labels),
    fenced: options.fenced,
    refuseDeadlock: options.refuseDeadlock,
    reportWaits: options.onWait !== undefined,
  };
}

function waits(options) {
  return (kind, busy) => {
    if (kind === 'waits') options.onWait?.(new errors.Busy({ ...busy, kind: 'busy', message: busy.what }));
  };
}

/** The name of this program as a holder. The name of the runtime would say little. */
function programName() {
  if (process.env.TENURE_NAME) return undefined;
  return process.argv[1] ? path.basename(process.argv[1]) : 'node';
}

/** The setting by which a session is made of a client. */
const SESSION = Symbol('session');

const forgotten = new FinalizationRegistry((number) => binding.dropClient(number));

class Client {
  #number;
  #isDurable;

  constructor(settings = {}) {
    try {
      if (settings[SESSION]) {
        const [client, owner, isDurable] = settings[SESSION];
        this.#number = binding.session(client, owner);
        this.#isDurable = isDurable;
      } else {
        this.#number = binding.client({ ...settings, name: settings.name ?? programName() });
        this.#isDurable = settings.durable !== false;
      }
    } catch (error) {
      throw invalid(error);
    }
    forgotten.register(this, this.#number);
  }

  session(owner) {
    return new Client({ [SESSION]: [this.#number, owner, this.#isDurable] });
  }

  async lock(address, options = {}) {
    const given = nativeOptions(options);
    const text = String(address);
    let fields;
    let direct = false;
    // A lock file that is not synced takes some microseconds, less than to change the thread twice.
    if (!this.#isDurable) {
      options.signal?.throwIfAborted();
      fields = this.#tryFile(text, given);
      direct = fields !== undefined;
    }
    fields ??= await run((call) => binding.acquire(call, this.#number, text, given), {
      signal: options.signal,
      ask: waits(options),
    });
    const guard = new Guard(fields, { direct });
    if (options.onLost) guard.once('lost', options.onLost);
    if (options.onReleaseRequest) guard.once('releaseRequested', options.onReleaseRequest);
    return guard;
  }

  /** Returns the guard's fields; undefined if the lock is no file or has to be waited for. */
  #tryFile(address, given) {
    let result;
    try {
      result = JSON.parse(binding.tryFile(this.#number, address, given));
    } catch (error) {
      throw invalid(error);
    }
    if (result === null) return undefined;
    if (!result.error) return result;
    if (result.error.kind === 'busy' && given.waitMs !== 0) return undefined;
    throw errorOf(result.error);
  }

  async lockAll(addresses, options = {}) {
    const given = nativeOptions(options);
    const texts = Array.from(addresses, String);
    const fields = await run((call) => binding.acquireAll(call, this.#number, texts, given), {
      signal: options.signal,
      ask: waits(options),
    });
    return new Guards(fields);
  }

  async withLock(address, options, body) {
    const guard = await this.lock(address, options);
    let result;
    try {
      result = await body(guard);
    } catch (error) {
      // The error of the body counts more than the one of the release.
      await guard.release().catch(() => {});
      throw error;
    }
    await guard.release();
    return result;
  }

  async inspect(address) {
    return stateOf(await run((call) => binding.inspect(call, this.#number, String(address))));
  }

  async list(address) {
    return (await run((call) => binding.list(call, this.#number, String(address)))).map(stateOf);
  }

  async ask(address, reason) {
    const start = (call) => binding.ask(call, this.#number, String(address), reason);
    return (await run(start)).map(blockerOf);
  }

  async breakHold(address, { id, force = false, reason = '' } = {}) {
    const broken = await run((call) =>
      binding.breakHold(call, this.#number, String(address), id, force, reason),
    );
    return { victims: broken.victims.map(blockerOf), fence: broken.fence ?? undefined };
  }

  async *watch(address, { signal } = {}) {
    const start = (call) => binding.watch(call, this.#number, String(address));
    const { watch } = await run(start, { signal });
    try {
      for (;;) {
        const change = await run((call) => binding.nextChange(call, watch), { signal });
        if (change === null) return;
        yield changeOf(change);
      }
    } finally {
      binding.dropWatch(watch);
    }
  }

  capabilities(address) {
    const found = JSON.parse(binding.capabilities(String(address)));
    if (found.error) throw errorOf(found.error);
    return { ...found, lease: found.lease ?? undefined };
  }
}

let shared;

/** The client with the settings of the environment. */
function client() {
  shared ??= new Client();
  return shared;
}

module.exports = {
  Busy: errors.Busy,
  Client,
  Denied: errors.Denied,
  Guard,
  Guards,
  InvalidInput: errors.InvalidInput,
  Lost: errors.Lost,
  Refused: errors.Refused,
  TenureError: errors.TenureError,
  TimedOut: errors.TimedOut,
  Unavailable: errors.Unavailable,
  Unsupported: errors.Unsupported,
  ask: (address, reason) => client().ask(address, reason),
  breakHold: (address, options) => client().breakHold(address, options),
  capabilities: (address) => client().capabilities(address),
  inspect: (address) => client().inspect(address),
  list: (address) => client().list(address),
  lock: (address, options) => client().lock(address, options),
  lockAll: (addresses, options) => client().lockAll(addresses, options),
  session: (owner) => client().session(owner),
  watch: (address, options) => client().watch(address, options),
  withLock: (address, options, body) => client().withLock(address, options, body),
};
