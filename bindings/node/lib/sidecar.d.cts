/** Sidecar locks with the API of `@openclaw/fs-safe`. */

export type SidecarLockRetryOptions = {
  /** Attempts after the first. Default: no limit. */
  retries?: number;
  /** Growth of the delay per attempt. Default: 1. */
  factor?: number;
  /** The first delay. Default: 50. */
  minTimeout?: number;
  /** The longest delay. Default: 1000. */
  maxTimeout?: number;
  /** Multiplies each delay by a random number in [1, 2). */
  randomize?: boolean;
};

export type SidecarLockStaleRecovery = 'fail-closed' | 'remove-if-unchanged';

export type SidecarLockStaleSnapshot = {
  lockPath: string;
  normalizedTargetPath: string;
  raw: string;
  payload: Record<string, unknown> | null;
};

export type SidecarLockAcquireOptions<TPayload extends Record<string, unknown>> = {
  targetPath: string;
  /** Default: the normalized target path + `.lock`. */
  lockPath?: string;
  /** The age at which a lock may be called stale. A lock whose holder is proven alive is never stale. */
  staleMs: number;
  /** The deadline of the acquisition. Default: none. */
  timeoutMs?: number;
  retry?: SidecarLockRetryOptions;
  /** What to do with a stale lock. Default: `fail-closed`. */
  staleRecovery?: SidecarLockStaleRecovery;
  /** Counts up instead of waiting if this manager holds the lock. */
  allowReentrant?: boolean;
  /** Returns the members of the record; is called for every attempt. */
  payload: () => TPayload | Promise<TPayload>;
  /** Decides instead of the age whether a lock is stale. */
  shouldReclaim?: (params: {
    lockPath: string;
    normalizedTargetPath: string;
    payload: Record<string, unknown> | null;
    staleMs: number;
    nowMs: number;
    heldByThisProcess: boolean;
  }) => boolean | Promise<boolean>;
  /** Must agree before a stale lock is removed, with `remove-if-unchanged`. */
  shouldRemoveStaleLock?: (snapshot: SidecarLockStaleSnapshot) => boolean | Promise<boolean>;
  /** Shown by `heldEntries()`, not written. */
  metadata?: Record<string, unknown>;
};

export type SidecarLockHandle = {
  lockPath: string;
  normalizedTargetPath: string;
  release: () => Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
};

export type SidecarLockHeldEntry = {
  normalizedTargetPath: string;
  lockPath: string;
  acquiredAt: number;
  metadata: Record<string, unknown>;
  forceRelease: () => Promise<boolean>;
};

export type WithSidecarLockOptions<TPayload extends Record<string, unknown>> = Omit<
  SidecarLockAcquireOptions<TPayload>,
  'targetPath'
> & {
  managerKey?: string;
};

export function createSidecarLockManager(key: string): {
  acquire: <TPayload extends Record<string, unknown>>(
    options: SidecarLockAcquireOptions<TPayload>,
  ) => Promise<SidecarLockHandle>;
  withLock: <T, TPayload extends Record<string, unknown>>(
    options: SidecarLockAcquireOptions<TPayload>,
    fn: () => Promise<T>,
  ) => Promise<T>;
  drain: () => Promise<void>;
  reset: () => void;
  heldEntries: () => SidecarLockHeldEntry[];
};

export function withSidecarLock<T, TPayload extends Record<string, unknown>>(
  targetPath: string,
  options: WithSidecarLockOptions<TPayload>,
  fn: () => Promise<T>,
): Promise<T>;
