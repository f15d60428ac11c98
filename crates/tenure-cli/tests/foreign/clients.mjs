// Node clients: an EventSource as browsers have it, and gRPC with enums by name and longs as strings.

import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { EventSource } from "eventsource";

const require = createRequire(import.meta.url);
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const wanted = JSON.parse(readFileSync(0, "utf8"));

function post(path, body) {
  return fetch(`${wanted.web}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).then((answer) => answer.json());
}

// Opens an event stream, does something once it is open, and collects messages.
function events(query, onOpen, count) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(`${wanted.web}/v1/events/sse?${query}`);
    const seen = [];
    const timer = setTimeout(() => reject(new Error(`only ${JSON.stringify(seen)}`)), 30_000);
    source.onopen = () => onOpen().catch(reject);
    source.onmessage = (message) => {
      seen.push({ id: message.lastEventId, data: JSON.parse(message.data) });
      if (seen.length === count) {
        clearTimeout(timer);
        source.close();
        resolve(seen);
      }
    };
  });
}

function call(client, name, request) {
  return new Promise((resolve, reject) => {
    client[name](request, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function byName() {
  const definition = loader.loadSync("pathlockd/v1/pathlock.proto", {
    includeDirs: [wanted.proto], enums: String, longs: String, defaults: true,
  });
  const { pathlockd } = grpc.loadPackageDefinition(definition);
  const client = new pathlockd.v1.PathLock(wanted.grpc, grpc.credentials.createInsecure());
  const path = "node:/a/b";
  const request = { ownerId: "node", ttlMs: 30000, requests: [{ path, mode: "MODE_WRITE" }] };
  const granted = await call(client, "Acquire", request);
  const queued = await call(client, "Acquire", { ...request, ownerId: "other" });
  const pages = [];
  for (let cursor = Buffer.alloc(0), done = false; !done; ) {
    const page = await call(client, "DumpLocks", { cursor, ownerPage: 1 });
    pages.push(...page.entries.map((entry) => entry.path));
    cursor = page.nextCursor;
    done = page.done;
  }
  client.close();
  return { granted, queued, pages };
}

const revoked = await events("owner_id=web", () => post("/v1/requestRevoke", { ownerId: "web" }), 1);
console.log(JSON.stringify({ revoked, byName: await byName() }));
