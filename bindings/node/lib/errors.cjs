'use strict';

// Errors with the fields of the failure, so that programs need not read texts.

class TenureError extends Error {
  constructor(fields) {
    super(fields.message);
    this.code = `ERR_TENURE_${(fields.kind || 'error').toUpperCase().replaceAll('-', '_')}`;
    this.kind = fields.class ?? '';
    this.address = fields.place;
  }
  get name() {
    return this.constructor.name;
  }
}

class Busy extends TenureError {
  constructor(fields) {
    super(fields);
    this.blocker = fields.blocker ? blockerOf(fields.blocker) : undefined;
    this.position = fields.position ?? undefined;
    this.deadlock = fields.deadlock ?? [];
    this.nextStep = fields.next ?? '';
  }
}

class TimedOut extends Busy {}

class Lost extends TenureError {
  constructor(fields) {
    super(fields);
    this.reason = fields.cause;
    this.what = fields.what;
    this.seen = new Date(fields.seen_ms ?? 0);
  }
}

class Denied extends TenureError {
  constructor(fields) {
    super(fields);
    this.what = fields.what;
  }
}

class Refused extends TenureError {
  constructor(fields) {
    super(fields);
    this.what = fields.what;
    this.nextStep = fields.next ?? '';
  }
}

class InvalidInput extends TenureError {
  constructor(fields) {
    super(fields);
    this.about = fields.about;
    this.what = fields.what;
  }
}

class Unsupported extends TenureError {
  constructor(fields) {
    super(fields);
    this.what = fields.what;
  }
}

class Unavailable extends TenureError {
  constructor(fields) {
    super(fields);
    this.what = fields.what;
    this.retryAfterMs = fields.retry_after_ms;
  }
}

const KINDS = {
  busy: Busy,
  'timed-out': TimedOut,
  lost: Lost,
  refused: Refused,
  input: InvalidInput,
  unsupported: Unsupported,
  unavailable: Unavailable,
  denied: Denied,
};

/** Makes the error of a failure that the add-on reports. */
function errorOf(fields) {
  return new (KINDS[fields.kind] ?? TenureError)(fields);
}

function holderOf(fields = {}) {
  return {
    name: fields.name ?? '',
    host: fields.host ?? '',
    pid: fields.pid,
    purpose: fields.purpose ?? '',
    labels: fields.labels ?? {},
  };
}

function blockerOf(fields) {
  return {
    address: fields.place,
    holder: holderOf(fields.holder),
    standing: fields.standing,
    mode: fields.mode,
    heldForMs: fields.held_ms ?? undefined,
    leaseLeftMs: fields.lease_left_ms ?? undefined,
    fence: fields.fence ?? undefined,
    life: fields.verdict?.life ?? 'unknown',
    because: fields.verdict?.because ?? '',
    id: fields.id ?? undefined,
  };
}

function stateOf(fields) {
  return {
    address: fields.place,
    free: fields.free,
    holders: fields.holders.map(blockerOf),
    waiters: fields.waiters.map((waiter) => ({
      address: waiter.place,
      holder: holderOf(waiter.holder),
      owner: waiter.owner,
      mode: waiter.mode,
      waitedMs: waiter.waited_ms ?? undefined,
    })),
    fence: fields.fence ?? undefined,
    rule: fields.rule ?? undefined,
    deadlock: fields.deadlock ?? [],
    notes: fields.notes ?? [],
  };
}

function changeOf(fields) {
  return {
    kind: fields.kind,
    address: fields.place,
    owner: fields.owner,
    holder: holderOf(fields.holder),
    mode: fields.mode,
    fence: fields.fence ?? undefined,
  };
}

function requestOf(fields) {
  return { by: holderOf(fields.by), reason: fields.reason ?? undefined };
}

module.exports = {
  Busy,
  Denied,
  InvalidInput,
  Lost,
  Refused,
  TenureError,
  TimedOut,
  Unavailable,
  Unsupported,
  blockerOf,
  changeOf,
  errorOf,
  requestOf,
  stateOf,
};
