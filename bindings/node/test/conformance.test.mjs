// Runs the cases of conformance/ with this package on every backend that they name.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, readFileSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { root, startDaemon, temporary } from './daemon.mjs';

let daemon;
before(async () => {
  daemon = await startDaemon();
});
after(() => daemon.stop());

function addressOf(backend, name, directory) {
  if (backend === 'daemon') return `conf:/${name}`;
  if (backend === 'file') return path.join(directory, name.replace('/', '-'));
  const repository = path.join(directory, name);
  mkdirSync(repository, { recursive: true });
  return `repo:${repository}`;
}

class Client {
  constructor() {
    this.process = spawn(process.execPath, [path.join(import.meta.dirname, 'conformance-client.mjs')], {
      stdio: ['pipe', 'pipe', 'inherit'],
      env: { ...process.env, TENURE_URL: daemon.url },
    });
    this.lines = createInterface({ input: this.process.stdout })[Symbol.asyncIterator]();
    this.ended = once(this.process, 'exit');
  }
  send(request) {
    this.process.stdin.write(`${JSON.stringify(request)}\n`);
  }
  async answer() {
    const { value, done } = await this.lines.next();
    assert.ok(!done, 'the client process ended');
    return JSON.parse(value);
  }
  async kill() {
    this.process.kill('SIGCONT');
    this.process.kill('SIGKILL');
    await this.ended;
  }
}

const runnerSteps = {
  join: (client) => client.answer(),
  async crash(client) {
    await client.kill();
    return { result: 'crashed' };
  },
  pause(client) {
    client.process.kill('SIGSTOP');
    return { result: 'paused' };
  },
  resume(client) {
    client.process.kill('SIGCONT');
    return { result: 'resumed' };
  },
};

async function perform(step, backend, client, prefix, directory) {
  if (runnerSteps[step.op]) return runnerSteps[step.op](client);
  const { op, mode, wait_ms, ask } = step;
  const ttl_ms = backend === 'daemon' ? step.ttl_ms : undefined;
  const address = addressOf(backend, `${prefix}/${step.path}`, directory);
  client.send({ op, address, mode, wait_ms, ttl_ms, ask });
  return step.begin ? undefined : client.answer();
}

const folder = path.join(root, 'conformance');
const files = readdirSync(folder).filter((name) => name.endsWith('.json'));
assert.ok(files.length > 0, 'there are no cases');

for (const file of files) {
  const definition = JSON.parse(readFileSync(path.join(folder, file), 'utf8'));
  for (const backend of definition.backends) {
    test(`${definition.name} on ${backend}`, { timeout: 60_000 }, async () => {
      const clients = new Map();
      const fences = new Map();
      const [prefix, directory] = [randomUUID(), temporary()];
      try {
        for (const step of definition.steps) {
          if (!clients.has(step.client)) clients.set(step.client, new Client());
          const answer = await perform(step, backend, clients.get(step.client), prefix, directory);
          if (answer === undefined) continue;
          for (const [name, value] of Object.entries(step.expect ?? {})) {
            assert.deepEqual(answer[name], value, `${JSON.stringify(step)} was answered with ${JSON.stringify(answer)}`);
          }
          if (step.fence_above) assert.ok(answer.fence > fences.get(step.fence_above), JSON.stringify(answer));
          if (step.save) fences.set(step.save, answer.fence);
        }
      } finally {
        await Promise.all(Array.from(clients.values(), (client) => client.kill()));
      }
    });
  }
}
