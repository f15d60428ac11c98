// Two real @tus/server processes on one store, with the locker on upload files and on the daemon.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { connect } from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import * as tenure from 'tenure';
import { DaemonLocker, UploadFileLocker } from 'tenure/tus';
import tus from 'tus-js-client';
import { startDaemon, temporary } from './daemon.mjs';

/** `TENURE_ROUNDS=200 npm test` runs what a release has to show. */
const ROUNDS = Number(process.env.TENURE_ROUNDS ?? 5);
const SIZE = 300_000;

let daemon;
before(async () => {
  daemon = await startDaemon();
  process.env.TENURE_URL = daemon.url;
});
after(() => daemon.stop());

async function startServer(directory, kind) {
  const child = spawn(process.execPath, [path.join(import.meta.dirname, 'tus-server.mjs'), directory, kind], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, TENURE_URL: daemon.url },
  });
  const [port] = await once(createInterface({ input: child.stdout }), 'line');
  return {
    port: Number(port),
    url: `http://127.0.0.1:${port}/files`,
    async stop() {
      child.kill();
      await once(child, 'exit');
    },
  };
}

const HEADERS = { 'Tus-Resumable': '1.0.0' };

async function create(server, size = SIZE) {
  const answer = await fetch(server.url, {
    method: 'POST',
    headers: { ...HEADERS, 'Upload-Length': String(size) },
  });
  assert.equal(answer.status, 201);
  return answer.headers.get('location').split('/').at(-1);
}

/** Sends the beginning of a PATCH and keeps the connection open without a sign of life. */
async function halfOpenPatch(server, id, data, store) {
  const socket = connect(server.port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.write(
    `PATCH /files/${id} HTTP/1.1\r\nHost: 127.0.0.1:${server.port}\r\nTus-Resumable: 1.0.0\r\n` +
      `Content-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\nContent-Length: ${SIZE}\r\n\r\n`,
  );
  socket.write(data);
  // Bytes in the file show that the request holds the lock.
  while (!existsSync(path.join(store, id)) || statSync(path.join(store, id)).size === 0) await sleep(1);
  return socket;
}

function resume(server, id, data) {
  return new Promise((resolve, reject) => {
    const upload = new tus.Upload(data, {
      uploadUrl: `${server.url}/${id}`,
      retryDelays: [],
      onError: reject,
      onSuccess: resolve,
    });
    upload.start();
  });
}

for (const kind of ['files', 'daemon']) {
  describe(kind, () => {
    const store = temporary();
    let servers;
    before(async () => {
      servers = [await startServer(store, kind), await startServer(store, kind)];
    });
    after(() => Promise.all(servers.map((server) => server.stop())));

    test(`an upload with a half-open PATCH resumes on the other server, ${ROUNDS} rounds`, async (context) => {
      let slowest = 0;
      for (let round = 0; round < ROUNDS; round++) {
        const [one, other] = round % 2 ? servers : servers.toReversed();
        const data = randomBytes(SIZE);
        const id = await create(one);
        const part = data.subarray(0, 1 + Math.floor(Math.random() * (SIZE - 1)));
        const socket = await halfOpenPatch(one, id, part, store);
        const began = performance.now();
        const head = await fetch(`${other.url}/${id}`, { method: 'HEAD', headers: HEADERS });
        assert.equal(head.status, 200);
        slowest = Math.max(slowest, performance.now() - began);
        await resume(other, id, data);
        assert.ok(readFileSync(path.join(store, id)).equals(data), `round ${round}: other bytes`);
        socket.destroy();
      }
      context.diagnostic(`slowest HEAD during a half-open PATCH: ${slowest.toFixed(0)} ms`);
    });

    test('a DELETE during a half-open PATCH on the other server', async () => {
      const id = await create(servers[0]);
      const socket = await halfOpenPatch(servers[0], id, randomBytes(1000), store);
      const answer = await fetch(`${servers[1].url}/${id}`, { method: 'DELETE', headers: HEADERS });
      assert.equal(answer.status, 204);
      socket.destroy();
      const head = await fetch(`${servers[0].url}/${id}`, { method: 'HEAD', headers: HEADERS });
      assert.ok([404, 410].includes(head.status));
    });

    test('POST with a body, PATCH, HEAD, GET and DELETE take and release the lock', async () => {
      const data = randomBytes(SIZE);
      const created = await fetch(servers[0].url, {
        method: 'POST',
        headers: { ...HEADERS, 'Upload-Length': String(SIZE), 'Content-Type': 'application/offset+octet-stream' },
        body: data.subarray(0, 1000),
      });
      assert.equal(created.status, 201);
      const id = created.headers.get('location').split('/').at(-1);
      const at = (number) => `${servers[number].url}/${id}`;
      const patched = await fetch(at(1), {
        method: 'PATCH',
        headers: { ...HEADERS, 'Upload-Offset': '1000', 'Content-Type': 'application/offset+octet-stream' },
        body: data.subarray(1000),
      });
      assert.equal(patched.status, 204);
      const head = await fetch(at(0), { method: 'HEAD', headers: HEADERS });
      assert.equal(head.headers.get('upload-offset'), String(SIZE));
      const got = await fetch(at(1));
      assert.ok(Buffer.from(await got.arrayBuffer()).equals(data));
      const address = kind === 'files' ? `upload:${store}#${id}` : `tus:/${process.pid}/${id}`;
      await (await tenure.lock(address, { waitMs: 10_000 })).release();
      assert.equal((await fetch(at(0), { method: 'DELETE', headers: HEADERS })).status, 204);
    });

    test('a lock that is not released in time is ERR_LOCK_TIMEOUT', async () => {
      const options = { acquireLockTimeout: 100 };
      const locker = kind === 'files' ? new UploadFileLocker({ directory: store, ...options }) : new DaemonLocker(options);
      const [holder, waiter] = [locker.newLock('up'), locker.newLock('up')];
      let requests = 0;
      await holder.lock(new AbortController().signal, () => void requests++);
      await assert.rejects(waiter.lock(new AbortController().signal, () => {}), {
        status_code: 500,
        body: 'failed to acquire lock before timeout',
      });
      assert.equal(requests, 1);
      const abort = new AbortController();
      const aborted = waiter.lock(abort.signal, () => {});
      abort.abort();
      await assert.rejects(aborted, { status_code: 500 });
      await holder.unlock();
      await waiter.lock(new AbortController().signal, () => {});
      await waiter.unlock();
      await assert.rejects(waiter.unlock());
    });
  });
}
