/** Lockers for `@tus/server`. */

import { Client } from './index.cjs';

interface LockerOptions {
  /** How long a request waits for the lock, in milliseconds. Default: 20,000. */
  acquireLockTimeout?: number;
  /** The client to lock with. Default: one with the settings of the environment. */
  client?: Client;
}

interface UploadLock {
  lock(signal: AbortSignal, requestRelease: () => Promise<void> | void): Promise<void>;
  unlock(): Promise<void>;
}

/**
 * Locks the uploads of a directory with files, for all servers that share it; compatible with tusd's file locker.
 */
export class UploadFileLocker {
  constructor(options: LockerOptions & { directory: string });
  newLock(id: string): UploadLock;
}

/** Locks uploads on a daemon, for servers on any machine and any store. */
export class DaemonLocker {
  constructor(options?: LockerOptions & { prefix?: string });
  newLock(id: string): UploadLock;
}
