// Checked by tsc in strict mode, compiled and run.

import { Server } from '@tus/server';
import { FileStore } from '@tus/file-store';
import { Busy, Client, Lost, lock, lockAll, watch, withLock, type Guard, type LockState } from 'tenure';
import { createSidecarLockManager, withSidecarLock } from 'tenure/sidecar';
import { DaemonLocker, UploadFileLocker } from 'tenure/tus';

const [address = '', file = ''] = process.argv.slice(2);

async function main(): Promise<Guard> {
  await using guard = await lock(address, { waitMs: 30_000, purpose: 'types', labels: { build: '7' } });
  guard.on('lost', (lost: Lost) => console.error(lost.reason));
  const fence: number | undefined = guard.fence;
  console.log('held', guard.held && fence !== undefined);
  return guard;
}

const released = await main();
console.log('released', !released.held);

export async function others(client: Client): Promise<LockState | undefined> {
  try {
    await using guards = await lockAll(['vol:/a', 'vol:/b'], { signal: AbortSignal.timeout(1000) });
    await guards.add('vol:/c');
  } catch (error) {
    if (error instanceof Busy) console.log(error.blocker?.holder.pid, error.position);
  }
  const length: number = await withLock(file, { onLost: (lost) => console.log(lost.seen) }, (guard) => guard.address.length);
  for await (const change of watch('vol:/')) if (change.kind === 'granted') break;
  const manager = createSidecarLockManager('types');
  await using handle = await manager.acquire({ targetPath: file, staleMs: 1000, payload: () => ({ pid: length }) });
  await withSidecarLock(handle.lockPath, { staleMs: 1000, payload: async () => ({}), managerKey: 'types' }, async () => 7);
  // @ts-expect-error: a time limit is a number.
  await lock(file, { waitMs: 'soon' });
  new Server({ path: '/', datastore: new FileStore({ directory: '.' }), locker: new DaemonLocker({ prefix: 'tus:/a', client }) });
  new Server({ path: '/', datastore: new FileStore({ directory: '.' }), locker: new UploadFileLocker({ directory: '.' }) });
  return client.inspect('vol:/a');
}
