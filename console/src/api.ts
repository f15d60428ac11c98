// Calls of the daemon. Every request carries a header that no page of another origin can set.

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** No answer came: the daemon cannot be reached. */
export class Unreachable extends Error {}

const HEADERS = { "x-tenure-console": "1" };

async function request(method: string, url: string, body?: unknown): Promise<Response> {
  const limit = AbortSignal.timeout(15_000);
  try {
    return await fetch(url, {
      method,
      headers: body === undefined ? HEADERS : { ...HEADERS, "content-type": "application/json" },
      body: body === undefined ? null : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: limit,
    });
  } catch {
    throw new Unreachable("the daemon does not answer");
  }
}

async function answer<T>(response: Response): Promise<T> {
  let body: any = null;
  try {
    body = await response.json();
  } catch {
    throw new ApiError(response.status, "UNKNOWN", `the daemon answered ${response.status}`);
  }
  if (!response.ok) {
    const error = body?.error ?? {};
    throw new ApiError(response.status, error.code ?? "UNKNOWN", error.message ?? "unknown error");
  }
  return body as T;
}

export async function call<T>(rpc: string, body: unknown = {}): Promise<T> {
  return answer<T>(await request("POST", `/v1/${rpc}`, body));
}

export async function get<T>(url: string): Promise<T> {
  return answer<T>(await request("GET", url));
}

export async function post<T>(url: string, body: unknown): Promise<T> {
  return answer<T>(await request("POST", url, body));
}

export async function signOut(): Promise<void> {
  await answer(await request("DELETE", "/console/session"));
}

export async function metrics(): Promise<string> {
  const response = await request("GET", "/metrics");
  if (!response.ok) throw new ApiError(response.status, "", "no metrics");
  return response.text();
}

export type Holder = { name: string; host: string; pid: number; purpose: string; labels: Record<string, string> };
export type Blocker = {
  owner: string;
  holder: Holder | null;
  heldMs: number;
  leaseLeftMs: number;
  fence: number;
  mode: number;
  path: string;
};
export type Child = {
  name: string;
  path: string;
  holds: number;
  waiters: number;
  branch: boolean;
  minimum: boolean;
  partial: boolean;
  holders: Blocker[];
};
export type Children = { children: Child[]; next: string; done: boolean; missingGroups: number };
export type Wait = {
  owner: string;
  holder: Holder | null;
  path: string;
  mode: number;
  waitedMs: number;
  paths: number;
  blockers: string[];
};
export type Waits = { waits: Wait[]; count: number; missingGroups: number };
export type HistoryEvent = {
  atMs: number;
  kind: number;
  path: string;
  owner: string;
  mode: number;
  fence: number;
  holder: Holder | null;
};
export type Span = {
  path: string;
  owner: string;
  mode: number;
  fence: number;
  holder: Holder | null;
  queuedMs: number;
  grantedMs: number;
  endedMs: number;
  end: number;
};
export type History = {
  events: HistoryEvent[];
  spans: Span[];
  completeSinceMs: number;
  cut: boolean;
  missingGroups: number;
};
export type Explain = {
  free: boolean;
  reason: number;
  blockers: { blocker: Blocker | null; waitsFor: string[] }[];
  waitersAhead: Blocker[];
  cycle: string[];
  namespace: string;
  algorithm: number;
};
export type NodeStatus = {
  number: number;
  name: string;
  up: boolean;
  forMs: number;
  draining: boolean;
  publicAddress: string;
  peerAddress: string;
  leads: number;
  replicas: number;
  reported: boolean;
  release: string;
};
export type GroupStatus = {
  number: number;
  leader: number;
  term: number;
  voters: number[];
  learners: number[];
  changing: boolean;
  applied: number;
  lag: number;
  holds: number;
  waiters: number;
  unconfirmedVoters: number[];
};
export type Status = {
  clusterId: string;
  answeredBy: number;
  healthy: boolean;
  problems: string[];
  otherClusters: string[];
  groupCount: number;
  defaultLockAlgorithm: string;
  nodes: NodeStatus[];
  holds: number;
  waiters: number;
  groupsWithoutLeader: number;
  groups: GroupStatus[];
};
export type WhoAmI = {
  principal: string;
  anonymous: boolean;
  administrator: boolean;
  groups: string[];
  grants: { verbs: string[]; at: string }[];
};
export type Policy = { namespace: string; algorithm: number };

export const ALGORITHMS = ["recursive_rw", "point_rw", "recursive_write", "point_write", "semaphore"];
export const ALGORITHM_TEXT = [
  "shared and exclusive; an exclusive lock covers everything below its path",
  "shared and exclusive; a lock covers its own path only",
  "exclusive only; a lock covers everything below its path",
  "exclusive only; a lock covers its own path only",
  "as many holders as the path has permits",
];
export const MODES = ["exclusive", "shared", "shared subtree"];
export const KINDS = [
  "unknown",
  "held",
  "granted",
  "queued",
  "released",
  "expired",
  "broken",
  "left queue",
  "asked",
  "policy",
];
