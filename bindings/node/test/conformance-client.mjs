// A client process of the conformance cases: conformance/README.md describes its lines.

import { createInterface } from 'node:readline';
import * as tenure from 'tenure';

const client = new tenure.Client({ tenureOnly: true });
const held = new Map();

const operations = {
  async lock({ address, mode, wait_ms: waitMs, ttl_ms: ttlMs, ask }) {
    const guard = await client.lock(address, { mode, waitMs, ttlMs, ask });
    held.set(address, guard);
    return { result: 'held', fence: guard.fence };
  },
  async release({ address }) {
    const guard = held.get(address);
    held.delete(address);
    await guard.release();
    return { result: 'released' };
  },
  async check({ address }) {
    await held.get(address).check();
    return { result: 'held' };
  },
  async lost({ address }) {
    // The promise alone does not keep the process alive; its open input does.
    return { result: 'lost', cause: (await held.get(address).lost()).reason };
  },
  async requested({ address }) {
    await held.get(address).releaseRequested();
    return { result: 'requested' };
  },
  async ask({ address }) {
    return { result: 'asked', asked: (await client.ask(address)).length };
  },
  async break({ address }) {
    await client.breakHold(address, { force: true, reason: 'conformance' });
    return { result: 'broken' };
  },
};

const names = [
  [tenure.TimedOut, 'timed-out'],
  [tenure.Busy, 'busy'],
  [tenure.Lost, 'lost'],
  [tenure.Denied, 'denied'],
  [tenure.Unavailable, 'unavailable'],
  [tenure.Unsupported, 'unsupported'],
  [tenure.InvalidInput, 'input'],
  [tenure.Refused, 'refused'],
];

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let answer;
  try {
    answer = await operations[request.op](request);
  } catch (error) {
    const name = names.find(([kind]) => error instanceof kind)?.[1] ?? 'error';
    answer = { result: name, message: error.message, cause: error.reason };
  }
  console.log(JSON.stringify(answer));
}
