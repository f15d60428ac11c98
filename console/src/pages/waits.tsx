// The wait-for graph: who waits for whom, with deadlocks marked and their ways out.
import { useMemo, useState } from "preact/hooks";
import { Blocker, Explain, MODES, Wait, Waits as Found, call } from "../api";
import { Ask, Break } from "../actions";
import { count, plural, shown } from "../format";
import { go, link, usePoll } from "../state";
import { Card, Empty, Mark, Missing, OwnerLink, Page, PathLink, Problem, Since } from "../ui";

const DRAWN = 60;

type Graph = { owners: string[]; edges: [string, string][]; cycles: string[][]; layer: Map<string, number> };

/** Tarjan's strongly connected components; those with more than one owner are deadlocks. */
export function components(owners: string[], next: Map<string, string[]>): string[][] {
  const index = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const on = new Set<string>();
  const found: string[][] = [];
  for (const start of owners) {
    if (index.has(start)) continue;
    const work: { owner: string; at: number }[] = [{ owner: start, at: 0 }];
    while (work.length) {
      const frame = work.at(-1)!;
      const { owner } = frame;
      if (frame.at === 0 && !index.has(owner)) {
        index.set(owner, index.size);
        low.set(owner, index.get(owner)!);
        stack.push(owner);
        on.add(owner);
      }
      const targets = next.get(owner) ?? [];
      if (frame.at < targets.length) {
        const target = targets[frame.at++]!;
        if (!index.has(target)) work.push({ owner: target, at: 0 });
        else if (on.has(target)) low.set(owner, Math.min(low.get(owner)!, index.get(target)!));
        continue;
      }
      work.pop();
      const parent = work.at(-1);
      if (parent) low.set(parent.owner, Math.min(low.get(parent.owner)!, low.get(owner)!));
      if (low.get(owner) === index.get(owner)) {
        const one: string[] = [];
        for (;;) {
          const top = stack.pop()!;
          on.delete(top);
          one.push(top);
          if (top === owner) break;
        }
        found.push(one.reverse());
      }
    }
  }
  return found;
}

function graph(waits: Wait[]): Graph {
  const next = new Map<string, string[]>();
  for (const wait of waits) {
    const list = next.get(wait.owner) ?? [];
    for (const blocker of wait.blockers) if (!list.includes(blocker)) list.push(blocker);
    next.set(wait.owner, list);
  }
  const all = [...new Set(waits.flatMap((wait) => [wait.owner, ...wait.blockers]))];
  const parts = components(all, next);
  const cycles = parts.filter((part) => part.length > 1);
  const inCycle = new Set(cycles.flat());
  // Deadlocks first, then the longest waits.
  const owners = [...all.filter((owner) => inCycle.has(owner)), ...all.filter((owner) => !inCycle.has(owner))].slice(0, DRAWN);
  const kept = new Set(owners);
  const edges: [string, string][] = [];
  for (const owner of owners) {
    const direct = next.get(owner) ?? [];
    for (const to of direct) {
      // In a line each waits for all ahead of it: the nearest one is enough to see it.
      const through = direct.some((one) => one !== to && !inCycle.has(one) && (next.get(one) ?? []).includes(to));
      if (kept.has(to) && (!through || (inCycle.has(owner) && inCycle.has(to)))) edges.push([owner, to]);
    }
  }
  // Layers: a holder that waits for nothing is at the right, its waiters left of it. Components come
  // in an order in which what an owner waits for comes first.
  const layer = new Map<string, number>();
  for (const part of parts) {
    const inside = new Set(part);
    let most = 0;
    for (const owner of part) {
      for (const to of next.get(owner) ?? []) if (!inside.has(to)) most = Math.max(most, (layer.get(to) ?? 0) + 1);
    }
    part.forEach((owner, i) => layer.set(owner, most + (part.length > 1 ? i % 2 : 0)));
  }
  return { owners, edges, cycles, layer };
}

export function Waits() {
  const waits = usePoll(() => call<Found>("listWaits", { page: 512 }), 1000, "waits");
  const list = waits.data?.waits ?? [];
  const drawn = useMemo(() => graph(list), [waits.data]);
  return (
    <Page
      title="Waits"
      sub={waits.data ? `${plural(Math.max(waits.data.count, list.length), "request")} in queues` : "Loading…"}
    >
      <Problem error={waits.error} />
      <Missing groups={waits.data?.missingGroups} />
      {drawn.cycles.map((cycle) => (
        <Deadlock key={cycle.join()} cycle={cycle} waits={list} />
      ))}
      {waits.data && !list.length ? (
        <Empty title="No request waits">
          <p>Every request that came got its lock. When two owners want the same path, the one that waits appears here.</p>
        </Empty>
      ) : null}
      {list.length ? (
        <>
          <Card wide title="Who waits for whom" note="an arrow points to the owner that is waited for">
            <Drawing graph={drawn} />
          </Card>
          <Card wide title="Waiting requests" note={list.length < (waits.data?.count ?? 0) ? `the ${count(list.length)} oldest` : ""}>
            <div class="scroll">
              <table>
                <thead>
                  <tr>
                    <th>Owner</th>
                    <th>Waits for</th>
                    <th>Mode</th>
                    <th>Blocked by</th>
                    <th class="right">Waits</th>
                  </tr>
                </thead>
                <tbody>
                  {list.slice(0, 200).map((wait) => (
                    <tr key={`${wait.owner} ${wait.path}`}>
                      <td>
                        <OwnerLink owner={wait.owner} holder={wait.holder} />
                      </td>
                      <td class="grow">
                        <PathLink path={wait.path} most={60} />
                        {wait.paths > 1 ? <span class="dim"> and {wait.paths - 1} more</span> : null}
                      </td>
                      <td>{MODES[wait.mode]}</td>
                      <td>
                        {wait.blockers.slice(0, 2).map((owner, i) => (
                          <span key={owner}>
                            {i ? ", " : ""}
                            <OwnerLink owner={owner} />
                          </span>
                        ))}
                        {wait.blockers.length > 2 ? <span class="dim"> +{wait.blockers.length - 2}</span> : null}
                      </td>
                      <td class="right">
                        <Since ms={wait.waitedMs} at={waits.at} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </Card>
        </>
      ) : null}
    </Page>
  );
}

function Drawing({ graph }: { graph: Graph }) {
  const W = 168;
  const H = 30;
  const GAP_X = 84;
  const GAP_Y = 14;
  const columns = new Map<number, string[]>();
  for (const owner of graph.owners) {
    const at = graph.layer.get(owner) ?? 0;
    columns.set(at, [...(columns.get(at) ?? []), owner]);
  }
  const layers = [...columns.keys()].sort((a, b) => b - a);
  const rows = Math.max(1, ...[...columns.values()].map((column) => column.length));
  const place = new Map<string, [number, number]>();
  layers.forEach((layer, i) => {
    const column = columns.get(layer)!;
    const free = ((rows - column.length) * (H + GAP_Y)) / 2;
    column.forEach((owner, j) => place.set(owner, [4 + i * (W + GAP_X), 6 + free + j * (H + GAP_Y)]));
  });
  const width = layers.length * (W + GAP_X) - GAP_X + 8;
  const height = rows * (H + GAP_Y) + 4;
  const bad = new Map<string, number>();
  graph.cycles.forEach((cycle, i) => cycle.forEach((owner) => bad.set(owner, i)));
  return (
    <div class="scroll drawing" tabIndex={0} role="group" aria-label="Wait-for graph">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="group" aria-label="The table below has the same edges">
        <defs>
          {["edge", "edge bad"].map((kind) => (
            <marker key={kind} id={kind.replace(" ", "-")} viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse">
              <path class={`tip ${kind}`} d="M0 0 8 4 0 8z" />
            </marker>
          ))}
        </defs>
        {graph.edges.map(([from, to]) => {
          const [x1, y1] = place.get(from)!;
          const [x2, y2] = place.get(to)!;
          const cyclic = bad.has(from) && bad.get(from) === bad.get(to);
          const forward = x2 > x1;
          const same = x1 === x2;
          const sx = forward ? x1 + W : x1;
          const ex = forward ? x2 : x2 + W;
          const sy = y1 + H / 2 + (cyclic && !forward ? 6 : cyclic ? -6 : 0);
          const ey = y2 + H / 2 + (cyclic && !forward ? 6 : cyclic ? -6 : 0);
          const bend = same ? 40 : Math.abs(ex - sx) / 2;
          const path = same
            ? `M${x1 + W} ${sy}C${x1 + W + bend} ${sy} ${x1 + W + bend} ${ey} ${x2 + W} ${ey}`
            : `M${sx} ${sy}C${sx + (forward ? bend : -bend)} ${sy} ${ex - (forward ? bend : -bend)} ${ey} ${ex} ${ey}`;
          return <path key={`${from}\u0000${to}`} class={cyclic ? "edge bad" : "edge"} d={path} marker-end={`url(#${cyclic ? "edge-bad" : "edge"})`} />;
        })}
        {graph.owners.map((owner) => {
          const [x, y] = place.get(owner)!;
          return (
            <a
              key={owner}
              href={link("owner", owner)}
              aria-label={`${shown(owner, 60)}${bad.has(owner) ? ", in a deadlock" : ""}`}
              onClick={(event) => {
                event.preventDefault();
                go(link("owner", owner));
              }}
            >
              <rect class={bad.has(owner) ? "node bad" : "node"} x={x} y={y} width={W} height={H} rx="6" />
              <text x={x + 10} y={y + 19}>
                {bad.has(owner) ? "◆ " : ""}
                {shown(owner, bad.has(owner) ? 18 : 20)}
              </text>
            </a>
          );
        })}
      </svg>
      {graph.owners.length >= DRAWN ? <p class="dim pad">The first {DRAWN} owners are drawn; deadlocks always are.</p> : null}
    </div>
  );
}

function Deadlock({ cycle, waits }: { cycle: string[]; waits: Wait[] }) {
  const inside = new Set(cycle);
  const edges = waits.flatMap((wait) =>
    inside.has(wait.owner) ? wait.blockers.filter((to) => inside.has(to)).map((to) => ({ wait, to })) : [],
  );
  return (
    <section class="deadlock" role="alert" aria-label="Deadlock">
      <h2>
        <Mark tone="bad" /> DEADLOCK of {plural(cycle.length, "owner")}
      </h2>
      <p>None of them goes on by itself. End it in one of these ways:</p>
      <ul>
        {edges.map(({ wait, to }) => (
          <li key={`${wait.owner} ${to}`}>
            <span>
              <OwnerLink owner={wait.owner} /> waits for <PathLink path={wait.path} most={48} />, which <OwnerLink owner={to} />{" "}
              blocks
            </span>
            <WayOut owner={to} path={wait.path} />
          </li>
        ))}
      </ul>
    </section>
  );
}

/** Looks up the hold that blocks: the break names its fence, so that no later holder loses the lock. */
function WayOut({ owner, path }: { owner: string; path: string }) {
  const [hold, setHold] = useState<Blocker | null>(null);
  usePoll(
    async () => {
      const found = await call<Explain>("explain", { path, mode: 0, ownerId: "(console)" });
      const one = found.blockers.find((blocker) => blocker.blocker?.owner === owner);
      setHold(one?.blocker ?? null);
      return true;
    },
    2000,
    `way out ${owner} ${path}`,
  );
  return (
    <span class="buttons left">
      <Ask owner={owner} path={path} />
      {hold ? <Break hold={hold} label={`Break the hold of ${shown(owner, 24)}`} /> : null}
    </span>
  );
}
