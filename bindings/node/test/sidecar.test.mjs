// The manager of sidecar locks. Each test that shows the API runs with the original package too, so that a program
// can change its import.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, readFileSync, realpathSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { describe, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import * as ours from 'tenure/sidecar';
import { temporary } from './daemon.mjs';

const ORIGINAL = path.join(import.meta.dirname, '../node_modules/@openclaw/fs-safe/dist/sidecar-lock.js');
const original = await import(pathToFileURL(ORIGINAL).href);
const directory = realpathSync(temporary());
let count = 0;
const fresh = () => path.join(directory, `target-${++count}`);
const options = (targetPath, more = {}) => ({
  targetPath,
  staleMs: 60_000,
  payload: () => ({ pid: process.pid, what: 'test' }),
  ...more,
});

const once_ = { retry: { retries: 0 } };

for (const [name, { createSidecarLockManager, withSidecarLock }] of Object.entries({ tenure: ours, original })) {
  describe(name, () => {
    const manager = (key = `key-${++count}`) => createSidecarLockManager(key);

    test('a handle names its paths, and release removes the file', async () => {
      const [locks, target] = [manager(), fresh()];
      const handle = await locks.acquire(options(target));
      assert.equal(handle.normalizedTargetPath, target);
      assert.equal(handle.lockPath, `${target}.lock`);
      assert.equal(JSON.parse(readFileSync(handle.lockPath, 'utf8')).what, 'test');
      await handle.release();
      await handle.release();
      assert.equal(existsSync(handle.lockPath), false);
      const disposed = await locks.acquire(options(target));
      await disposed[Symbol.asyncDispose]();
      assert.equal(existsSync(disposed.lockPath), false);
    });

    test('retries: 0 tries once and fails with the code of the original', async () => {
      const [locks, target] = [manager(), fresh()];
      const handle = await locks.acquire(options(target));
      for (const other of [locks, manager()]) {
        await assert.rejects(other.acquire(options(target, once_)), (error) => {
          assert.equal(error.code, 'file_lock_timeout');
          assert.equal(error.message, `file lock timeout for ${target}`);
          assert.equal(error.lockPath, `${target}.lock`);
          assert.equal(error.normalizedTargetPath, target);
          return true;
        });
      }
      await assert.rejects(manager().acquire(options(target, { timeoutMs: 60 })), { code: 'file_lock_timeout' });
      await handle.release();
    });

    test('a waiter gets the lock after the release', async () => {
      const target = fresh();
      const handle = await manager().acquire(options(target));
      const waiter = manager().acquire(options(target, { retry: { minTimeout: 5, maxTimeout: 5 } }));
      await handle.release();
      await (await waiter).release();
    });

    test('payload may be asynchronous, and the record has its last value', async () => {
      const target = fresh();
      const handle = await manager().acquire(options(target));
      let turns = 0;
      const waiter = manager().acquire(
        options(target, {
          retry: { minTimeout: 1, maxTimeout: 1 },
          payload: async () => {
            await new Promise(setImmediate);
            return { turn: ++turns };
          },
        }),
      );
      await handle.release();
      const second = await waiter;
      assert.ok(turns >= 1);
      assert.equal(JSON.parse(readFileSync(second.lockPath, 'utf8')).turn, turns);
      await second.release();
    });

    test('an exception of payload rejects the acquire', async () => {
      const target = fresh();
      const boom = new Error('boom');
      const payload = () => {
        throw boom;
      };
      await assert.rejects(manager().acquire(options(target, { payload })), boom);
      const rejected = options(target, { payload: () => Promise.reject(boom) });
      await assert.rejects(manager().acquire(rejected), boom);
      await (await manager().acquire(options(target, once_))).release();
    });

    test('allowReentrant counts nested acquisitions of one manager', async () => {
      const [locks, target] = [manager('nested'), fresh()];
      const outer = await locks.acquire(options(target));
      const inner = await createSidecarLockManager('nested').acquire(options(target, { ...once_, allowReentrant: true }));
      assert.equal(locks.heldEntries().length, 1);
      await inner.release();
      assert.equal(existsSync(outer.lockPath), true);
      await outer.release();
      assert.equal(existsSync(outer.lockPath), false);
    });

    test('withLock returns the value, and releases after an exception', async () => {
      const [locks, target] = [manager(), fresh()];
      assert.equal(await locks.withLock(options(target), async () => 7), 7);
      await assert.rejects(
        locks.withLock(options(target), async () => {
          throw new Error('the task failed');
        }),
        /the task failed/,
      );
      const { targetPath, ...rest } = options(target, once_);
      assert.equal(await withSidecarLock(targetPath, rest, async () => 8), 8);
      const inside = await withSidecarLock(targetPath, { ...rest, managerKey: 'named' }, async () =>
        createSidecarLockManager('named').heldEntries().map((entry) => entry.normalizedTargetPath),
      );
      assert.deepEqual(inside, [target]);
    });

    test('heldEntries shows metadata and releases by force', async () => {
      const [locks, target] = [manager(), fresh()];
      const metadata = { task: () => 'not JSON' };
      const before = Date.now();
      const handle = await locks.acquire(options(target, { metadata }));
      const [entry] = locks.heldEntries();
      assert.equal(entry.metadata.task, metadata.task);
      assert.ok(entry.acquiredAt >= before && entry.acquiredAt <= Date.now());
      assert.equal(entry.lockPath, handle.lockPath);
      assert.equal(await entry.forceRelease(), true);
      assert.deepEqual(locks.heldEntries(), []);
      assert.equal(existsSync(handle.lockPath), false);
      await handle.release();
    });

    test('drain and reset release everything of their manager only', async () => {
      const [locks, other] = [manager(), manager()];
      const kept = await other.acquire(options(fresh()));
      for (const release of [() => locks.drain(), () => locks.reset()]) {
        const handles = [await locks.acquire(options(fresh())), await locks.acquire(options(fresh()))];
        await release();
        for (const handle of handles) {
          assert.equal(existsSync(handle.lockPath), false);
          await handle.release();
        }
        assert.deepEqual(locks.heldEntries(), []);
      }
      assert.equal(existsSync(kept.lockPath), true);
      await kept.release();
    });

    test('release is silent when the lock is not ours any more', async () => {
      const target = fresh();
      const gone = await manager().acquire(options(target));
      unlinkSync(gone.lockPath);
      await gone.release();
      const replaced = await manager().acquire(options(target));
      unlinkSync(replaced.lockPath);
      writeFileSync(replaced.lockPath, '{"pid":1}');
      await replaced.release();
      assert.equal(existsSync(replaced.lockPath), true);
    });

    test('an old lock of another program is refused, or reclaimed by shouldReclaim', async () => {
      const target = fresh();
      const left = () => writeFileSync(`${target}.lock`, JSON.stringify({ who: 'other', createdAt: '2001-01-01T00:00:00Z' }));
      left();
      await assert.rejects(manager().acquire(options(target)), (error) => {
        assert.equal(error.code, 'file_lock_stale');
        assert.equal(error.message, `file lock stale for ${target}`);
        return true;
      });
      await assert.rejects(manager().acquire(options(target, { ...once_, shouldReclaim: () => false })), {
        code: 'file_lock_timeout',
      });
      const asked = [];
      const handle = await manager().acquire(
        options(target, {
          staleRecovery: 'remove-if-unchanged',
          shouldReclaim: async (params) => {
            asked.push(params);
            return true;
          },
          shouldRemoveStaleLock: async (snapshot) => JSON.parse(snapshot.raw).who === 'other',
        }),
      );
      assert.equal(asked[0].lockPath, `${target}.lock`);
      assert.equal(asked[0].normalizedTargetPath, target);
      assert.equal(asked[0].payload.who, 'other');
      assert.equal(asked[0].staleMs, 60_000);
      assert.equal(asked[0].heldByThisProcess, false);
      assert.ok(Math.abs(asked[0].nowMs - Date.now()) < 60_000);
      await handle.release();
    });

    test('a lock path of the caller, and a target behind a symlink', async () => {
      const [locks, target] = [manager(), fresh()];
      const lockPath = fresh();
      const handle = await locks.acquire(options(target, { lockPath }));
      assert.equal(handle.lockPath, lockPath);
      await handle.release();
      mkdirSync(`${target}-real`);
      symlinkSync(`${target}-real`, `${target}-link`);
      const linked = await locks.acquire(options(`${target}-link/x`));
      assert.equal(linked.normalizedTargetPath, `${target}-real/x`);
      await linked.release();
    });

    test('the end of the process releases what it holds', async () => {
      const target = fresh();
      const from = name === 'tenure' ? 'tenure/sidecar' : pathToFileURL(ORIGINAL).href;
      const program = `
        import { createSidecarLockManager } from ${JSON.stringify(from)};
        await createSidecarLockManager('exit').acquire({ targetPath: ${JSON.stringify(target)}, staleMs: 1000, payload: () => ({}) });
        console.log('held');
        process.exit(3);
      `;
      const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
        cwd: import.meta.dirname,
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      let output = '';
      child.stdout.on('data', (text) => (output += text));
      const [code] = await once(child, 'exit');
      assert.equal(code, 3);
      assert.equal(output, 'held\n');
      assert.equal(existsSync(`${target}.lock`), false);
    });
  });
}

test('payload is evaluated again on a retry', async () => {
  const target = fresh();
  const handle = await ours.createSidecarLockManager('first').acquire(options(target));
  let turns = 0;
  const payload = async () => {
    turns += 1;
    // The first attempt fails, because the lock is held until its answer is on the way.
    if (turns === 1) setTimeout(() => void handle.release(), 20);
    return { turn: turns };
  };
  const second = await ours.createSidecarLockManager('second').acquire(options(target, { payload }));
  assert.ok(turns >= 2);
  assert.equal(JSON.parse(readFileSync(second.lockPath, 'utf8')).turn, turns);
  await second.release();
});

test('shouldReclaim alone is the approval, and is not asked about a live holder', async () => {
  const target = fresh();
  writeFileSync(`${target}.lock`, '{}');
  const handle = await ours.createSidecarLockManager('approval').acquire(options(target, { shouldReclaim: () => true }));
  const never = () => assert.fail('a live holder is never stale');
  const second = ours.createSidecarLockManager('other').acquire(options(target, { ...once_, shouldReclaim: never }));
  await assert.rejects(second, { code: 'file_lock_timeout' });
  await handle.release();
});

test('a second release of a nested handle does not release the outer one', async () => {
  const [locks, target] = [ours.createSidecarLockManager('twice'), fresh()];
  const outer = await locks.acquire(options(target));
  const inner = await locks.acquire(options(target, { allowReentrant: true }));
  await inner.release();
  await inner.release();
  assert.equal(existsSync(outer.lockPath), true);
  await outer.release();
});

test('an exception of shouldReclaim rejects the acquire', async () => {
  const target = fresh();
  writeFileSync(`${target}.lock`, '{}');
  const boom = new Error('boom');
  const shouldReclaim = () => Promise.reject(boom);
  await assert.rejects(ours.createSidecarLockManager('x').acquire(options(target, { shouldReclaim })), boom);
  assert.equal(readFileSync(`${target}.lock`, 'utf8'), '{}');
});

test('what is no lock is refused with the code of the original', async () => {
  const target = fresh();
  mkdirSync(`${target}.lock`);
  await assert.rejects(ours.createSidecarLockManager('x').acquire(options(target)), { code: 'not-file' });
  await assert.rejects(ours.createSidecarLockManager('x').acquire(options(fresh(), { retry: { retries: 1.5 } })), {
    name: 'TypeError',
    message: /retry.retries must be a non-negative safe integer/,
  });
});

test('a killed holder is reclaimed at once, by proof of its death', async () => {
  const target = fresh();
  const program = `
    import { createSidecarLockManager } from 'tenure/sidecar';
    await createSidecarLockManager('x').acquire({ targetPath: ${JSON.stringify(target)}, staleMs: 1e9, payload: () => ({}) });
    console.log('held');
    setInterval(() => {}, 1e6);
  `;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    cwd: import.meta.dirname,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await once(createInterface({ input: child.stdout }), 'line');
  const waiter = ours.createSidecarLockManager('y').acquire(options(target, { staleMs: 1e9 }));
  child.kill('SIGKILL');
  await (await waiter).release();
});

/** This generation of the original calls a lock stale that vanishes while it looks at it. */
async function patient(acquire) {
  for (;;) {
    try {
      return await acquire();
    } catch (error) {
      if (error.code !== 'file_lock_stale') throw error;
    }
  }
}

test('both packages exclude each other', async () => {
  const target = fresh();
  const [a, b] = [ours.createSidecarLockManager('mixed'), original.createSidecarLockManager('mixed')];
  let counter = 0;
  const add = async (locks) => {
    for (let round = 0; round < 15; round++) {
      const retry = { minTimeout: 1, maxTimeout: 5 };
      const handle = await patient(() => locks.acquire(options(target, { retry })));
      const seen = counter;
      await new Promise(setImmediate);
      counter = seen + 1;
      await handle.release();
    }
  };
  await Promise.all([add(a), add(b), add(a), add(b)]);
  assert.equal(counter, 60);
});
