/// <reference types="node" />
/** Locks for files, repositories and clusters behind one API. */

import { EventEmitter } from 'node:events';

/**
 * What to lock: `vol:/a/b` (a path on the daemon), `state.json` (the lock file beside it), `repo:/mnt/backup`,
 * `s3://bucket/prefix`, `mem:name`, …
 */
export type Address = string | URL;

export type Mode = 'exclusive' | 'shared' | 'shared-tree' | 'permit';

export interface ClientSettings {
  /** The nodes of the daemon, `tenure://host:port,host:port`. Default: `TENURE_URL`. */
  url?: string;
  /** The name of this holder. Default: the name of the program. */
  name?: string;
  /** The bearer token. Default: `TENURE_CLIENT_AUTH_TOKEN`. */
  token?: string;
  /** The file with the bearer token, read again for each connection. */
  tokenFile?: string;
  /** A PEM file with the certificate authorities to trust; enables TLS. */
  caFile?: string;
  /** The fingerprint of the only certificate to accept, `sha256:…`; enables TLS. */
  pin?: string;
  /** The client certificate for mutual TLS. */
  certFile?: string;
  /** Its key. */
  keyFile?: string;
  /** The token may be sent to other machines without TLS. */
  allowPlaintext?: boolean;
  /** Lock files are synced to disk before they count as held. Default: true. `false` is faster. */
  durable?: boolean;
  /** A lock file may be reclaimed by its age alone, without proof of death. */
  reclaimByAge?: boolean;
  /** The age from which a lock file may count as stale. */
  staleMs?: number;
  /** Only Tenure uses the repositories, so waiting times for other programs are skipped. */
  tenureOnly?: boolean;
}

export interface LockOptions {
  /** Default: `exclusive`. */
  mode?: Mode;
  /** The same as `mode: 'shared'`. */
  shared?: boolean;
  /** The same as `mode: 'shared-tree'`: shared, for a path and everything below it. */
  sharedTree?: boolean;
  /** One of this many permits. All holders of a path must give the same number. */
  permits?: number;
  /** The time limit of the wait; 0 throws `Busy` at once. Default: no limit. */
  waitMs?: number;
  /** The lease ends after this time without a renewal. Tenure renews by itself. */
  ttlMs?: number;
  /** Asks the holder to release while this request waits. */
  ask?: boolean;
  /** What the lock is for. Waiters see it. */
  purpose?: string;
  /** Labels for people. */
  labels?: Record<string, string>;
  /** Requests a fence from lock files; the other backends always give one. */
  fenced?: boolean;
  /** Fails instead of waiting in a cycle of owners (daemon only). */
  refuseDeadlock?: boolean;
  /** Cancels the wait and leaves nothing behind. */
  signal?: AbortSignal;
  /** Is called while the request waits. */
  onWait?: (busy: Busy) => void;
}

export interface OneLockOptions extends LockOptions {
  /** Is called once when the lock is lost. */
  onLost?: (lost: Lost) => void;
  /** Is called once when another client asks for the lock. */
  onReleaseRequest?: (request: ReleaseRequest) => void;
}

export interface Holder {
  name: string;
  host: string;
  pid?: number;
  purpose: string;
  labels: Record<string, string>;
}

/** A hold, or an earlier waiter, that blocks a request. */
export interface Blocker {
  address: string;
  holder: Holder;
  standing: 'holds' | 'waits';
  mode: Mode;
  heldForMs?: number;
  leaseLeftMs?: number;
  fence?: number;
  life: 'alive' | 'dead' | 'unknown';
  because: string;
  /** The id of exactly this hold, for `breakHold`. */
  id?: string;
}

export interface Waiter {
  address: string;
  holder: Holder;
  owner: string;
  mode: Mode;
  waitedMs?: number;
}

export interface LockState {
  address: string;
  /** Whether an exclusive request would be granted now. */
  free: boolean;
  holders: Blocker[];
  waiters: Waiter[];
  fence?: number;
  rule?: string;
  deadlock: string[];
  notes: string[];
}

export interface Change {
  kind:
    | 'present'
    | 'present-end'
    | 'granted'
    | 'queued'
    | 'released'
    | 'expired'
    | 'killed'
    | 'dequeued'
    | 'asked'
    | 'policy';
  address: string;
  owner: string;
  holder: Holder;
  mode: Mode;
  fence?: number;
}

export interface ReleaseRequest {
  by: Holder;
  reason?: string;
}

export interface Broken {
  victims: Blocker[];
  fence?: number;
}

export interface Capabilities {
  modes: 'exclusive' | 'shared' | 'all';
  order: 'fair' | 'none';
  fence: 'always' | 'on-request';
  /** The allowed lengths of a lease in milliseconds; undefined if a lock lasts as long as its holder. */
  lease?: [number, number];
  liveness: 'shared' | 'kernel' | 'lease';
  ask: boolean;
  across: 'process' | 'machine' | 'store' | 'cluster';
}

/** The base of all errors of this package. */
export class TenureError extends Error {
  /** `ERR_TENURE_BUSY`, `ERR_TENURE_TIMED_OUT`, `ERR_TENURE_LOST`, … */
  code: string;
  /** The class of the failure: `Held`, `Timeout`, `Stale`, `NotALock`, `Compromised`, … */
  kind: string;
  address?: string;
}

/** The lock is held, and the caller did not want to wait. */
export class Busy extends TenureError {
  blocker?: Blocker;
  /** The place in the queue, counted from 1, if there is a queue. */
  position?: number;
  deadlock: string[];
  nextStep: string;
}

/** The lock was still held when the time limit ended. */
export class TimedOut extends Busy {}

/** The lock was held and is lost. The work that it protected must stop. */
export class Lost extends TenureError {
  reason: 'expired' | 'unconfirmed' | 'broken' | 'killed' | 'overwritten';
  what: string;
  /** When this process noticed it. */
  seen: Date;
}

/** The caller is not authorized. */
export class Denied extends TenureError {
  what: string;
}

/** The request was refused, and waiting does not help. */
export class Refused extends TenureError {
  what: string;
  nextStep: string;
}

/** An argument is invalid. Nothing was changed. */
export class InvalidInput extends TenureError {
  about: string;
  what: string;
}

/** The backend does not support the request. Nothing was changed. */
export class Unsupported extends TenureError {
  what: string;
}

/** The daemon or the store could not be reached. A retry may succeed. */
export class Unavailable extends TenureError {
  what: string;
  retryAfterMs: number;
}

interface GuardEvents {
  lost: [lost: Lost];
  releaseRequested: [request: ReleaseRequest];
  renewed: [lease: { ttlMs: number }];
}

/**
 * A lock that is held. `release()` ends it, and so does the end of an `await using` block. A guard without references
 * is released in the background.
 */
export class Guard extends EventEmitter<GuardEvents> implements AsyncDisposable {
  private constructor();
  readonly address: string;
  readonly mode: Mode;
  /** The id of the holder. */
  readonly owner: string;
  /**
   * The fencing token, a number that grows with every exclusive grant. A store that refuses smaller ones is safe from
   * paused writers.
   */
  readonly fence: number | undefined;
  /** Whether the lock is held, as far as this process knows. Does no I/O. */
  readonly held: boolean;
  /** The path of the lock file, if the lock is one. */
  readonly lockFile: string | undefined;
  /** How long the protected work may continue without another renewal; Infinity without a lease. */
  readonly validForMs: number;
  /** The first release request, if there is one. */
  readonly releaseRequest: ReleaseRequest | undefined;
  /** Is aborted when the lock is lost; its reason is the `Lost` error. */
  readonly signal: AbortSignal;
  /** Asks the backend whether the lock is held now. Throws `Lost` if it is lost. */
  check(): Promise<void>;
  /** Completes when the lock is lost, or with null when it is released. */
  lost(): Promise<Lost | null>;
  /** Completes when another client asks for the lock, or with null when it is released. */
  releaseRequested(): Promise<ReleaseRequest | null>;
  /** Releases the lock. Throws `Lost` if it was lost before. Further calls return the same promise. */
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Several locks that are held together. The loss of one is the loss of all. */
export class Guards implements AsyncDisposable {
  private constructor();
  readonly entries: { address: string; mode: Mode; fence?: number }[];
  readonly validForMs: number;
  /** Acquires one more lock with the options of the others. */
  add(address: Address): Promise<void>;
  /** Releases one of the locks; the others stay held. */
  remove(address: Address): Promise<void>;
  check(): Promise<void>;
  lost(): Promise<Lost | null>;
  release(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Settings that are given once; locks are made from them. */
export class Client {
  constructor(settings?: ClientSettings);
  /** Returns a client whose locks all belong to `owner`: they never exclude each other. */
  session(owner: string): Client;
  /** Acquires a lock. */
  lock(address: Address, options?: OneLockOptions): Promise<Guard>;
  /** Acquires several locks, all or none, in a fixed order. */
  lockAll(addresses: Iterable<Address>, options?: LockOptions): Promise<Guards>;
  /** Acquires a lock, runs `body`, and releases the lock. Throws `Lost` instead of the value if it was lost. */
  withLock<T>(address: Address, options: OneLockOptions, body: (guard: Guard) => Promise<T> | T): Promise<T>;
  /** Returns the holders, the waiters and the conflict rule of a lock. Changes nothing. */
  inspect(address: Address): Promise<LockState>;
  /** Returns all locks at or below an address. */
  list(address: Address): Promise<LockState[]>;
  /** Asks the holders to release. Returns the holders that were asked. */
  ask(address: Address, reason?: string): Promise<Blocker[]>;
  /** Breaks the hold `id`, or all holds that block `address`; without `force` only dead or stale ones. */
  breakHold(address: Address, options?: { id?: string; force?: boolean; reason?: string }): Promise<Broken>;
  /** The changes at or below an address. Begins with the present holds and `present-end`; does not end by itself. */
  watch(address: Address, options?: { signal?: AbortSignal }): AsyncGenerator<Change, void, undefined>;
  /** Returns what the backend of an address supports. Does no I/O. */
  capabilities(address: Address): Capabilities;
}

export const lock: Client['lock'];
export const lockAll: Client['lockAll'];
export const withLock: Client['withLock'];
export const session: Client['session'];
export const inspect: Client['inspect'];
export const list: Client['list'];
export const ask: Client['ask'];
export const breakHold: Client['breakHold'];
export const watch: Client['watch'];
export const capabilities: Client['capabilities'];
