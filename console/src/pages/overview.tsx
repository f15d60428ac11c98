import { useRef } from "preact/hooks";
import { History, Status, Waits, call, get, metrics } from "../api";
import { count, duration, plural } from "../format";
import { link, usePoll } from "../state";
import { Card, FirstLock, Mark, Missing, Page, PathLink, Problem, Spark, Tone } from "../ui";

export function health(status: Status): { tone: Tone; text: string } {
  const down = status.nodes.filter((node) => !node.up);
  const draining = status.nodes.filter((node) => node.draining && node.up);
  if (status.problems.length || status.otherClusters.length) {
    return { tone: "bad", text: status.problems[0] ?? status.otherClusters[0]! };
  }
  if (status.groupsWithoutLeader) {
    return {
      tone: "bad",
      text: `${plural(status.groupsWithoutLeader, "group has", "groups have")} no leader: locks in them cannot be taken or released now.`,
    };
  }
  if (down.length) {
    const names = down.map((node) => node.name).join(", ");
    return { tone: "warn", text: `Degraded: ${names} ${down.length === 1 ? "is" : "are"} down. All locks are served.` };
  }
  if (draining.length) return { tone: "busy", text: `${draining.map((n) => n.name).join(", ")} is draining.` };
  if (!status.healthy) return { tone: "busy", text: "Rebalancing: groups are changing their members. All locks are served." };
  return { tone: "good", text: `Healthy: ${plural(status.nodes.length, "node")} up, every group has a leader.` };
}

const OWN = /ListChildren|ListWaits|History|Explain|Health/;

type Sample = { at: number; calls: number; buckets: Map<number, number> };

/** Reads the counters of calls, without those that this page makes itself. */
function sample(text: string): Sample {
  let calls = 0;
  const buckets = new Map<number, number>();
  for (const line of text.split("\n")) {
    if (!line.startsWith("tenure_grpc_server_")) continue;
    if (OWN.test(line)) continue;
    const value = Number(line.slice(line.lastIndexOf(" ") + 1));
    if (line.startsWith("tenure_grpc_server_requests_total")) calls += value;
    const le = /duration_seconds_bucket\{.*le="([^"]+)"/.exec(line)?.[1];
    if (le) {
      // In milliseconds.
      const edge = le === "+Inf" ? Infinity : Number(le) * 1000;
      buckets.set(edge, (buckets.get(edge) ?? 0) + value);
    }
  }
  return { at: performance.now(), calls, buckets };
}

function quantile(before: Sample, after: Sample, q: number): number {
  const edges = [...after.buckets.keys()].sort((a, b) => a - b);
  const grown = edges.map((edge) => (after.buckets.get(edge) ?? 0) - (before.buckets.get(edge) ?? 0));
  const all = grown.at(-1) ?? 0;
  if (all <= 0) return 0;
  let low = 0;
  let below = 0;
  for (const [i, edge] of edges.entries()) {
    if (grown[i]! >= q * all) {
      const high = edge === Infinity ? low : edge;
      const inside = grown[i]! - below;
      return inside > 0 ? low + (high - low) * ((q * all - below) / inside) : high;
    }
    low = edge;
    below = grown[i]!;
  }
  return low;
}

function useThroughput() {
  const series = useRef({ rate: [] as number[], p50: [] as number[], p99: [] as number[] });
  const last = useRef<Sample | null>(null);
  usePoll(
    async () => {
      const now = sample(await metrics());
      const before = last.current;
      last.current = now;
      if (before && now.calls >= before.calls) {
        const s = series.current;
        const push = (list: number[], value: number) => {
          list.push(value);
          if (list.length > 60) list.shift();
        };
        push(s.rate, (now.calls - before.calls) / ((now.at - before.at) / 1000));
        push(s.p50, quantile(before, now, 0.5));
        push(s.p99, quantile(before, now, 0.99));
      }
      return now.at;
    },
    3000,
    "metrics",
  );
  return series.current;
}

export function Overview() {
  const status = usePoll(() => get<Status>("/v1/cluster/status?groups=0"), 2000, "status");
  const waits = usePoll(() => call<Waits>("listWaits", { page: 512 }), 2000, "waits");
  const history = usePoll(
    () => call<History>("history", { sinceMs: Date.now() - 600_000, page: 2048 }),
    5000,
    "history",
  );
  const series = useThroughput();
  const found = status.data;
  const state = found ? health(found) : null;
  const events = history.data?.events ?? [];
  const expired = events.filter((event) => event.kind === 5).length;
  const oldest = waits.data?.waits[0];
  const hot = new Map<string, { waiters: number; longest: number }>();
  for (const wait of waits.data?.waits ?? []) {
    const one = hot.get(wait.path) ?? { waiters: 0, longest: 0 };
    one.waiters += 1;
    one.longest = Math.max(one.longest, wait.waitedMs);
    hot.set(wait.path, one);
  }
  const changes = new Map<string, number>();
  for (const event of events) if (event.kind === 2) changes.set(event.path, (changes.get(event.path) ?? 0) + 1);
  const paths = [...new Set([...hot.keys(), ...changes.keys()])]
    .map((path) => ({ path, grants: changes.get(path) ?? 0, ...(hot.get(path) ?? { waiters: 0, longest: 0 }) }))
    .sort((a, b) => b.waiters - a.waiters || b.grants - a.grants)
    .slice(0, 10);
  const nothing = found && !found.holds && !found.waiters && !events.length;
  return (
    <Page title="Overview">
      <Problem error={status.error} />
      <Missing groups={waits.data?.missingGroups} />
      {state ? (
        <p class={`health ${state.tone}`} role="status">
          <Mark tone={state.tone} />
          <span>{state.text}</span>
        </p>
      ) : null}
      <div class="stats">
        <Stat label="Held" value={found ? count(found.holds) : "–"} href={link("locks")} />
        <Stat label="Waiting" value={found ? count(found.waiters) : "–"} href={link("waits")} />
        <Stat
          label="Oldest wait"
          value={waits.data ? (oldest ? duration(oldest.waitedMs) : "none") : "–"}
          href={oldest ? link("lock", oldest.path) : link("waits")}
        />
        <Stat
          label="Expired leases, 10 min"
          value={history.data ? `${count(expired)}${history.data.cut ? "+" : ""}` : "–"}
          href={link("activity", "", { kind: "expired" })}
        />
      </div>
      {nothing ? <FirstLock /> : null}
      <div class="grid">
        <Card title="Calls of this node" note="the last three minutes, without this page's own">
          <div class="sparks">
            <Spark values={series.rate} label="Throughput" unit="calls/s" />
            <Spark values={series.p50} label="Median" unit="ms" />
            <Spark values={series.p99} label="99th percentile" unit="ms" />
          </div>
        </Card>
        <Card title="Most contended paths" note="waiters now, grants in ten minutes">
          {paths.length ? (
            <table>
              <thead>
                <tr>
                  <th>Path</th>
                  <th class="right">Waiters</th>
                  <th class="right">Longest wait</th>
                  <th class="right">Grants</th>
                </tr>
              </thead>
              <tbody>
                {paths.map((one) => (
                  <tr key={one.path}>
                    <td class="grow">
                      <PathLink path={one.path} most={60} />
                    </td>
                    <td class="right number">{count(one.waiters)}</td>
                    <td class="right number">{one.waiters ? duration(one.longest) : "–"}</td>
                    <td class="right number">{count(one.grants)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          ) : (
            <p class="dim pad">No path was granted or waited for in the last ten minutes.</p>
          )}
        </Card>
      </div>
    </Page>
  );
}

function Stat({ label, value, href }: { label: string; value: string; href: string }) {
  return (
    <a class="stat" href={href}>
      <span class="label">{label}</span>
      <span class="value number">{value}</span>
    </a>
  );
}
