// A real daemon for the tests.

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, openSync, rmSync } from 'node:fs';
import { createConnection, createServer } from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');

export function temporary() {
  return mkdtempSync(path.join(os.tmpdir(), 'tenure-node-'));
}

/** The path of the `tenure` command: TENURE_BIN, or what cargo built. */
export function command() {
  if (process.env.TENURE_BIN) return process.env.TENURE_BIN;
  const target = process.env.CARGO_TARGET_DIR ?? path.join(root, 'target');
  const built = ['debug', 'release'].map((profile) => path.join(target, profile, 'tenure'));
  const found = built.find((file) => existsSync(file));
  if (!found) throw new Error('build the daemon first: cargo build -p tenure-cli, or set TENURE_BIN');
  return found;
}

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

function connects(port) {
  return new Promise((resolve) => {
    const socket = createConnection(port, '127.0.0.1');
    socket.once('connect', () => (socket.destroy(), resolve(true)));
    socket.once('error', () => resolve(false));
  });
}

/** Starts a daemon; `stop()` ends it and removes its data. */
export async function startDaemon(environment = {}) {
  const directory = temporary();
  const [port, webPort] = [await freePort(), await freePort()];
  mkdirSync(path.join(directory, 'data'));
  const log = openSync(path.join(directory, 'log'), 'a');
  const child = spawn(command(), ['serve'], {
    env: {
      ...process.env,
      TENURE_LISTEN: `127.0.0.1:${port}`,
      TENURE_WEB_LISTEN: `127.0.0.1:${webPort}`,
      TENURE_DATA_DIR: path.join(directory, 'data'),
      ...environment,
    },
    stdio: ['ignore', log, log],
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  while (!(await connects(port))) {
    if (child.exitCode !== null) throw new Error(`the daemon ended: see ${directory}/log`);
    await sleep(20);
  }
  return {
    url: `tenure://127.0.0.1:${port}`,
    async stop() {
      child.kill('SIGKILL');
      await ended;
      rmSync(directory, { recursive: true, force: true });
    },
  };
}
