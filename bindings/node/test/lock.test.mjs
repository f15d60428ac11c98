// The package on files, in memory, on a repository and on a real daemon.

import assert from 'node:assert/strict';
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import * as tenure from 'tenure';
import { command, startDaemon, temporary } from './daemon.mjs';

const directory = temporary();
let daemon;
let count = 0;

before(async () => {
  daemon = await startDaemon();
  process.env.TENURE_URL = daemon.url;
});
after(async () => {
  await daemon.stop();
  rmSync(directory, { recursive: true, force: true });
});

const fresh = {
  file: () => path.join(directory, `file-${++count}`),
  memory: () => `mem:node/${++count}`,
  daemon: () => `test:/${process.pid}/${++count}`,
};
const fast = new tenure.Client({ durable: false });

for (const [backend, place] of Object.entries(fresh)) {
  describe(backend, () => {
    test('a guard holds until it is released', async () => {
      const address = place();
      const guard = await tenure.lock(address, { waitMs: 30_000 });
      assert.equal(guard.held, true);
      await guard.check();
      await assert.rejects(tenure.lock(address, { waitMs: 0 }), (error) => {
        assert.ok(error instanceof tenure.Busy);
        assert.equal(error.code, 'ERR_TENURE_BUSY');
        assert.equal(error.blocker.holder.pid, process.pid);
        return true;
      });
      await guard.release();
      await guard.release();
      assert.equal(guard.held, false);
      assert.equal(guard.validForMs, 0);
      await (await tenure.lock(address, { waitMs: 0 })).release();
    });

    test('a wait times out and names the holder', async () => {
      const address = place();
      const guard = await tenure.lock(address, { purpose: 'a long job' });
      await assert.rejects(tenure.lock(address, { waitMs: 100 }), (error) => {
        assert.ok(error instanceof tenure.TimedOut && error instanceof tenure.Busy);
        assert.equal(error.blocker.holder.purpose, 'a long job');
        return true;
      });
      await guard.release();
    });

    test('a waiter gets the lock when it is released', async () => {
      const address = place();
      const guard = await tenure.lock(address);
      const waits = new Promise((resolve) => (guard.tell = resolve));
      const waiter = tenure.lock(address, { onWait: guard.tell });
      const busy = await waits;
      assert.ok(busy instanceof tenure.Busy);
      await guard.release();
      const second = await waiter;
      assert.equal(second.held, true);
      await second[Symbol.asyncDispose]();
      assert.equal(second.held, false);
    });

    test('an aborted wait leaves nothing behind', async () => {
      const address = place();
      const guard = await tenure.lock(address);
      const abort = new AbortController();
      const reason = new Error('enough');
      const waiter = tenure.lock(address, {
        signal: abort.signal,
        onWait: () => abort.abort(reason),
      });
      await assert.rejects(waiter, reason);
      await guard.release();
      await (await tenure.lock(address, { waitMs: 30_000 })).release();
      await assert.rejects(tenure.lock(address, { signal: AbortSignal.abort(reason) }), reason);
    });

    test('tasks on one counter lose no update', async () => {
      const address = place();
      let counter = 0;
      const add = async () => {
        for (let round = 0; round < 10; round++) {
          await tenure.withLock(address, { waitMs: 60_000 }, async () => {
            const seen = counter;
            await new Promise(setImmediate);
            counter = seen + 1;
          });
        }
      };
      await Promise.all([add(), add(), add(), add()]);
      assert.equal(counter, 40);
    });
  });
}

test('fences grow', async () => {
  for (const address of [fresh.file(), fresh.memory(), fresh.daemon()]) {
    let last = 0;
    for (let round = 0; round < 3; round++) {
      const guard = await tenure.lock(address, { fenced: true });
      assert.ok(guard.fence > last);
      last = guard.fence;
      await guard.release();
      assert.equal(guard.fence, last);
    }
  }
});

test('shared locks coexist, permits are counted', async () => {
  const address = fresh.daemon();
  const [one, two] = [await tenure.lock(address, { shared: true }), await tenure.lock(address, { mode: 'shared' })];
  await assert.rejects(tenure.lock(address, { waitMs: 0 }), tenure.Busy);
  await Promise.all([one.release(), two.release()]);
  const pool = `gpu${process.pid}:/pool`;
  execFileSync(command(), ['policy', 'set', pool, 'semaphore'], { stdio: 'ignore' });
  const permits = [await tenure.lock(`${pool}/a`, { permits: 2 }), await tenure.lock(`${pool}/a`, { permits: 2 })];
  assert.equal(permits[0].mode, 'permit');
  await assert.rejects(tenure.lock(`${pool}/a`, { permits: 2, waitMs: 0 }), tenure.Busy);
  await Promise.all(permits.map((guard) => guard.release()));
});

test('a repository has shared and exclusive locks', async () => {
  const client = new tenure.Client({ tenureOnly: true });
  const repository = `repo:${temporary()}`;
  const guard = await client.lock(repository, { shared: true });
  assert.ok(guard.validForMs > 0 && guard.validForMs < 600_000);
  await assert.rejects(client.lock(repository, { waitMs: 0 }), tenure.Busy);
  await guard.release();
  const alone = await client.lock(repository);
  assert.ok(alone.fence > 0);
  await alone.release();
});

test('a lock file that is not synced is acquired at once, and excludes the others', async () => {
  const address = fresh.file();
  const guard = await fast.lock(address);
  assert.equal(JSON.parse(readFileSync(guard.lockFile, 'utf8')).pid, process.pid);
  await assert.rejects(tenure.lock(address, { waitMs: 0 }), tenure.Busy);
  await assert.rejects(fast.lock(address, { waitMs: 0 }), tenure.Busy);
  const waiter = fast.lock(address);
  await guard.release();
  await (await waiter).release();
  assert.equal(existsSync(guard.lockFile), false);
  const memory = await fast.lock(fresh.memory());
  await memory.release();
});

test('wrong arguments change nothing', async () => {
  const empty = temporary();
  const file = path.join(empty, 'x');
  await assert.rejects(tenure.lock('vol:a'), tenure.InvalidInput);
  await assert.rejects(tenure.lock(file, { shared: true }), tenure.Unsupported);
  await assert.rejects(tenure.lock(file, { shared: true, permits: 2 }), tenure.InvalidInput);
  await assert.rejects(tenure.lock(file, { waitMs: -1 }), tenure.InvalidInput);
  await assert.rejects(tenure.lock(file, { mode: 'private' }), tenure.InvalidInput);
  assert.throws(() => new tenure.Client({ certFile: 'x' }), tenure.InvalidInput);
  assert.deepEqual(readdirSync(empty), []);
});

test('loss reaches callback, event, signal, promise, check and release', async () => {
  const address = fresh.daemon();
  const called = [];
  const guard = await tenure.lock(address, { onLost: (lost) => called.push(lost.reason) });
  const lost = guard.lost();
  const aborted = once(guard.signal, 'abort');
  const broken = await tenure.breakHold(address, { force: true, reason: 'test' });
  assert.equal(broken.victims.length, 1);
  assert.equal((await lost).reason, 'killed');
  await aborted;
  assert.ok(guard.signal.reason instanceof tenure.Lost);
  assert.ok(guard.signal.reason.seen instanceof Date);
  assert.deepEqual(called, ['killed']);
  assert.equal(guard.held, false);
  await assert.rejects(guard.check(), tenure.Lost);
  await assert.rejects(guard.release(), tenure.Lost);
  await assert.rejects(
    tenure.withLock(address, {}, async (inner) => {
      await tenure.breakHold(address, { force: true, reason: 'test' });
      await inner.lost();
    }),
    tenure.Lost,
  );
});

test('a holder learns that another client asks', async () => {
  const address = fresh.daemon();
  const guard = await tenure.lock(address);
  const event = once(guard, 'releaseRequested');
  const asked = await tenure.ask(address, 'maintenance');
  assert.deepEqual(asked.map((blocker) => blocker.holder.pid), [process.pid]);
  await event;
  assert.ok(await guard.releaseRequested());
  assert.ok(guard.releaseRequest);
  assert.equal(guard.held, true);
  await guard.release();
});

test('waits for events end with the release', async () => {
  const guard = await tenure.lock(fresh.daemon());
  const waits = [guard.lost(), guard.releaseRequested()];
  await guard.release();
  assert.deepEqual(await Promise.all(waits), [null, null]);
});

test('several locks, sessions, inspect, list and watch', async () => {
  const address = fresh.daemon();
  const abort = new AbortController();
  const changes = tenure.watch(address, { signal: abort.signal });
  assert.equal((await changes.next()).value.kind, 'present-end');
  const guards = await tenure.lockAll([`${address}/b`, `${address}/a`]);
  assert.deepEqual(guards.entries.map((entry) => entry.address), [`${address}/b`, `${address}/a`]);
  assert.equal((await changes.next()).value.kind, 'granted');
  await guards.add(`${address}/c`);
  await guards.remove(`${address}/b`);
  await guards.check();
  assert.equal((await tenure.inspect(`${address}/b`)).free, true);
  assert.equal((await tenure.list(address)).length, 2);
  await guards.release();
  const seen = [];
  const reading = (async () => {
    for await (const change of changes) {
      seen.push(change.kind);
      if (change.kind === 'released' && seen.filter((kind) => kind === 'released').length === 3) abort.abort();
    }
  })();
  await assert.rejects(reading, { name: 'AbortError' });
  const session = tenure.session('worker-7');
  const outer = await session.lock(address);
  const inner = await session.lock(`${address}/below`, { waitMs: 0 });
  await assert.rejects(tenure.lock(`${address}/below`, { waitMs: 0 }), tenure.Busy);
  await inner.release();
  await outer.release();
});

test('capabilities differ by backend', () => {
  assert.equal(tenure.capabilities('./x').modes, 'exclusive');
  assert.equal(tenure.capabilities('vol:/a').order, 'fair');
  assert.throws(() => tenure.capabilities('vol:a'), tenure.InvalidInput);
});

test('wrong credentials are denied, an absent daemon is unavailable', async () => {
  const guarded = await startDaemon({
    TENURE_CLIENT_AUTH_TOKEN: 'open sesame',
    TENURE_LOOPBACK: 'authenticated',
  });
  try {
    const right = new tenure.Client({ url: guarded.url, token: 'open sesame' });
    await (await right.lock('vol:/a', { waitMs: 5000 })).release();
    const wrong = new tenure.Client({ url: guarded.url, token: 'wrong' });
    await assert.rejects(wrong.lock('vol:/a', { waitMs: 5000 }), tenure.Denied);
  } finally {
    await guarded.stop();
  }
  const absent = new tenure.Client({ url: 'tenure://127.0.0.1:1' });
  await assert.rejects(absent.lock('vol:/a', { waitMs: 200 }), (error) => {
    return error instanceof tenure.Unavailable || error instanceof tenure.TimedOut;
  });
});

test('require() and import give the same objects', () => {
  const required = createRequire(import.meta.url)('tenure');
  assert.equal(required.lock, tenure.lock);
  assert.equal(required.Busy, tenure.Busy);
  assert.deepEqual(new Set(Object.keys(required)), new Set(Object.keys(tenure).filter((name) => name !== 'default')));
});

test('a program that holds a lock can end, and a lock file is gone then', async () => {
  const file = fresh.file();
  const program = `
    import { lock } from 'tenure';
    globalThis.held = [await lock(${JSON.stringify(file)}), await lock(${JSON.stringify(fresh.daemon())})];
    globalThis.lost = held.map((guard) => guard.lost());
    console.log('holds');
  `;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    cwd: import.meta.dirname,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
  assert.equal(existsSync(`${file}.lock`), false);
});

test('a program that waits for a lock does not end', async () => {
  const address = fresh.daemon();
  const guard = await tenure.lock(address);
  const program = `
    import { lock } from 'tenure';
    const guard = await lock(${JSON.stringify(address)}, { onWait: () => console.log('waits') });
    await guard.release();
    console.log('held');
  `;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    cwd: import.meta.dirname,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (output += text));
  await once(child.stdout, 'data');
  assert.match(output, /^waits\n/);
  await guard.release();
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
  assert.match(output, /held\n$/);
});

test('worker threads use the package too', async () => {
  const address = fresh.file();
  const guard = await tenure.lock(address);
  const worker = new Worker(
    `const { lock, Busy } = require('tenure');
     const { parentPort, workerData } = require('node:worker_threads');
     lock(workerData, { waitMs: 0 }).catch((error) => parentPort.postMessage(error instanceof Busy));`,
    { eval: true, workerData: address },
  );
  const [isBusy] = await once(worker, 'message');
  assert.equal(isBusy, true);
  await worker.terminate();
  await guard.check();
  await guard.release();
});

test('a guard without references is released', async () => {
  const address = fresh.memory();
  const program = `
    import { lock } from 'tenure';
    await lock(${JSON.stringify(address)});
    await new Promise(setImmediate);
    const timer = setInterval(() => gc(), 10);
    await (await lock(${JSON.stringify(address)}, { waitMs: 30_000 })).release();
    clearInterval(timer);
  `;
  const child = spawn(process.execPath, ['--expose-gc', '--input-type=module', '-e', program], {
    cwd: import.meta.dirname,
    stdio: 'inherit',
  });
  const [code] = await once(child, 'exit');
  assert.equal(code, 0);
});

test('a strict type checker accepts a program with `await using`, and the program runs', async () => {
  const tsc = path.join(import.meta.dirname, '../node_modules/.bin/tsc');
  const output = temporary();
  const check = (file, ...more) => {
    const checked = spawnSync(tsc, ['-p', path.join(import.meta.dirname, 'types', file), ...more], { encoding: 'utf8' });
    assert.equal(checked.stdout, '');
    assert.equal(checked.status, 0);
  };
  check('declarations.json');
  check('tsconfig.json', '--outDir', output);
  const compiled = path.join(import.meta.dirname, 'types/compiled.test-output.mjs');
  writeFileSync(compiled, readFileSync(path.join(output, 'program.mjs')));
  try {
    const printed = execFileSync(process.execPath, [compiled, fresh.daemon(), fresh.file()], { encoding: 'utf8' });
    assert.equal(printed, 'held true\nreleased true\n');
  } finally {
    rmSync(compiled);
  }
});
