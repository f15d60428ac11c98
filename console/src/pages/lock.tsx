import { useState } from "preact/hooks";
import { ALGORITHMS, ALGORITHM_TEXT, Explain, History, KINDS, MODES, Span, call } from "../api";
import { Ask, Break } from "../actions";
import { clock, count, date, duration, plural, shown } from "../format";
import { link, usePoll } from "../state";
import { Card, Command, HolderFacts, Lease, Missing, OwnerLink, Page, Pill, Problem, Since } from "../ui";
import { quoted } from "../format";
import { Crumbs } from "./locks";

const NAME = "(console)";
const RANGES: [string, number][] = [
  ["10 min", 600_000],
  ["1 h", 3_600_000],
  ["6 h", 21_600_000],
];

function why(found: Explain, path: string): string {
  const at = found.blockers.map((one) => one.blocker).filter((one) => one !== null);
  if (found.cycle.length) return "Deadlock: owners wait for each other, so none of them goes on.";
  if (found.free) return "Free: the next request gets it at once.";
  if (!at.length) return "Not free: earlier requests are queued.";
  const first = at[0]!;
  const here = first.path === path;
  const how = here
    ? "holds it"
    : path.startsWith(first.path)
      ? `holds ${shown(first.path, 60)} above it, which covers it`
      : `holds ${shown(first.path, 60)} below it`;
  const who = first.owner === "(no access)" ? "an owner you may not see" : shown(first.holder?.name || first.owner, 40);
  const more = at.length > 1 ? `, and ${plural(at.length - 1, "other")} too` : "";
  return `Held: ${who} ${how} (${MODES[first.mode]})${more}.`;
}

export function Lock({ path }: { path: string }) {
  const [range, setRange] = useState(0);
  const explain = usePoll(
    () => call<Explain>("explain", { path, mode: 0, ownerId: NAME }),
    1000,
    `explain ${path}`,
  );
  const history = usePoll(
    () => call<History>("history", { prefix: path, exact: true, sinceMs: Date.now() - RANGES[range]![1], page: 2048 }),
    2000,
    `history ${path} ${range}`,
  );
  const found = explain.data;
  const holders = (found?.blockers ?? []).flatMap((one) => (one.blocker ? [{ hold: one.blocker, waitsFor: one.waitsFor }] : []));
  const queue = found?.waitersAhead ?? [];
  const state = !found ? null : found.cycle.length ? (
    <Pill tone="bad">DEADLOCK</Pill>
  ) : holders.length ? (
    <Pill tone={queue.length ? "warn" : "busy"}>{queue.length ? `held, ${queue.length} waiting` : "held"}</Pill>
  ) : (
    <Pill tone="good">free</Pill>
  );
  return (
    <Page
      title={
        <>
          <bdi class="path title">{shown(path, 200)}</bdi> {state}
        </>
      }
      sub={<Crumbs path={path} />}
    >
      <Problem error={explain.error} />
      {found ? <p class="why">{why(found, path)}</p> : null}
      {found?.cycle.length ? (
        <p class="why">
          <a href={link("waits")}>See the deadlock and the ways out</a>
        </p>
      ) : null}
      <div class="grid">
        <div class="column">
          {holders.map(({ hold, waitsFor }) => (
            <Card
              key={`${hold.owner} ${hold.path} ${hold.mode}`}
              title={hold.path === path ? "Holder" : "Holder of a related path"}
              note={<span class="tag">{MODES[hold.mode]}</span>}
            >
              <div class="pad">
                {hold.owner === "(no access)" ? (
                  <p class="dim">You may not see who holds it.</p>
                ) : (
                  <>
                    <p class="big">
                      <bdi>{shown(hold.holder?.name || hold.owner, 80)}</bdi>
                    </p>
                    {hold.path !== path ? (
                      <p>
                        <a class="path" href={link("lock", hold.path)}>
                          <bdi>{shown(hold.path, 100)}</bdi>
                        </a>
                      </p>
                    ) : null}
                    <p class="lease-line">
                      <span class="label">Lease left</span>
                      <Lease left={hold.leaseLeftMs} at={explain.at} held={hold.heldMs} />
                    </p>
                    <HolderFacts hold={hold} at={explain.at} />
                    {waitsFor.length ? (
                      <p>
                        It waits itself, for{" "}
                        {waitsFor.slice(0, 4).map((owner, i) => (
                          <>
                            {i ? ", " : ""}
                            <OwnerLink owner={owner} />
                          </>
                        ))}
                        .
                      </p>
                    ) : null}
                    <div class="buttons left">
                      <Ask owner={hold.owner} path={hold.path} />
                      <Break hold={hold} />
                    </div>
                  </>
                )}
              </div>
            </Card>
          ))}
          {found && !holders.length ? (
            <Card title="Holder">
              <div class="pad">
                <p>Nothing holds it. To take it:</p>
                <Command text={`tenure run ${quoted(path)} -- COMMAND`} />
              </div>
            </Card>
          ) : null}
        </div>
        <div class="column">
          <Card title="Queue" note={queue.length ? plural(queue.length, "waiter") : "empty"}>
            {queue.length ? (
              <table>
                <thead>
                  <tr>
                    <th class="right">#</th>
                    <th>Waiter</th>
                    <th>Mode</th>
                    <th class="right">Waits</th>
                  </tr>
                </thead>
                <tbody>
                  {queue.slice(0, 50).map((one, i) => (
                    <tr key={one.owner}>
                      <td class="right number">{i + 1}</td>
                      <td class="grow">
                        <OwnerLink owner={one.owner} holder={one.holder} />
                      </td>
                      <td>{MODES[one.mode]}</td>
                      <td class="right">
                        <Since ms={one.heldMs} at={explain.at} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            ) : (
              <p class="dim pad">No request waits for it.</p>
            )}
            {queue.length > 50 ? <p class="dim pad">and {count(queue.length - 50)} more</p> : null}
          </Card>
          {found ? (
            <Card title="Rule" note={ALGORITHMS[found.algorithm]}>
              <p class="pad">
                Namespace <bdi class="path">{shown(found.namespace, 80)}</bdi>: {ALGORITHM_TEXT[found.algorithm]}.
              </p>
            </Card>
          ) : null}
          <Card title="In a terminal">
            <div class="pad">
              <Command text={`tenure why ${quoted(path)}`} />
              <Command text={`tenure history --since 2h ${quoted(path)}`} />
            </div>
          </Card>
        </div>
      </div>
      <Card
        wide
        title="History"
        note={
          <span class="segments" role="group" aria-label="Range of the history">
            {RANGES.map(([name], i) => (
              <button key={name} type="button" aria-pressed={i === range} onClick={() => setRange(i)}>
                {name}
              </button>
            ))}
          </span>
        }
      >
        <Problem error={history.error} />
        <Missing groups={history.data?.missingGroups} />
        {history.data ? <Timeline spans={history.data.spans} length={RANGES[range]![1]} /> : null}
        {history.data ? <SpanTable found={history.data} start={Date.now() - RANGES[range]![1]} /> : null}
      </Card>
    </Page>
  );
}

function Timeline({ spans, length }: { spans: Span[]; length: number }) {
  const now = Date.now();
  const from = now - length;
  const recent = spans.slice(-400);
  const owners = [...new Set(recent.map((span) => span.owner))].slice(-12);
  if (!owners.length) return <p class="dim pad">Nothing held it or waited for it in this time.</p>;
  const W = 1000;
  const LANE = 22;
  const x = (ms: number) => Math.max(0, Math.min(W, ((ms - from) / length) * W));
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => from + share * length);
  return (
    <div class="timeline">
      <div class="lanes" aria-hidden="true">
        {owners.map((owner) => (
          <span key={owner} style={{ height: `${LANE}px` }}>
            <bdi>{shown(owner, 24)}</bdi>
          </span>
        ))}
      </div>
      <div class="plot">
        <svg
          viewBox={`0 0 ${W} ${owners.length * LANE}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`Time line of ${plural(recent.length, "hold or wait", "holds and waits")} of ${plural(owners.length, "owner")}; the table below has the same`}
          style={{ height: `${owners.length * LANE}px` }}
        >
          {ticks.map((tick) => (
            <line key={tick} class="tick" x1={x(tick)} x2={x(tick)} y1="0" y2={owners.length * LANE} />
          ))}
          {recent.map((span, i) => {
            const lane = owners.indexOf(span.owner);
            if (lane < 0) return null;
            const y = lane * LANE;
            const waitEnd = span.grantedMs || span.endedMs || now;
            const holdStart = span.grantedMs || (span.queuedMs ? 0 : from);
            const holdEnd = span.endedMs || now;
            return (
              <g key={i}>
                {span.queuedMs ? (
                  <rect class="wait" x={x(span.queuedMs)} width={Math.max(1.5, x(waitEnd) - x(span.queuedMs))} y={y + 9} height="5" />
                ) : null}
                {holdStart ? (
                  <rect
                    class={`hold${span.end === 5 || span.end === 6 ? " bad" : ""}`}
                    x={x(holdStart)}
                    width={Math.max(1.5, x(holdEnd) - x(holdStart))}
                    y={y + 5}
                    height="12"
                  />
                ) : null}
              </g>
            );
          })}
        </svg>
        <div class="ticks" aria-hidden="true">
          {ticks.map((tick) => (
            <span key={tick}>{clock(tick)}</span>
          ))}
        </div>
      </div>
      <p class="legend dim">
        <span class="key hold" /> held <span class="key bad" /> ended by expiry or break <span class="key wait" /> waited
      </p>
    </div>
  );
}

function SpanTable({ found, start }: { found: History; start: number }) {
  const spans = [...found.spans].reverse();
  return (
    <>
      {spans.length ? (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>From</th>
                <th>Owner</th>
                <th>Mode</th>
                <th class="right">Waited</th>
                <th class="right">Held</th>
                <th>End</th>
                <th class="right">Fence</th>
              </tr>
            </thead>
            <tbody>
              {spans.slice(0, 100).map((span, i) => {
                const begun = span.grantedMs || span.queuedMs;
                const waitedTo = span.grantedMs || span.endedMs || Date.now();
                return (
                  <tr key={i}>
                    <td class="number" title={begun ? date(begun) : ""}>
                      {begun ? clock(begun) : "earlier"}
                    </td>
                    <td class="grow">
                      <OwnerLink owner={span.owner} holder={span.holder} />
                    </td>
                    <td>{MODES[span.mode]}</td>
                    <td class="right number">{span.queuedMs ? duration(waitedTo - span.queuedMs) : "–"}</td>
                    <td class="right number">
                      {span.grantedMs ? duration((span.endedMs || Date.now()) - span.grantedMs) : span.queuedMs ? "–" : "?"}
                    </td>
                    <td>{span.end ? `${KINDS[span.end]} ${clock(span.endedMs)}` : span.grantedMs ? "still held" : "still waiting"}</td>
                    <td class="right number">{span.fence || "–"}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      ) : null}
      {spans.length > 100 ? <p class="dim pad">and {count(spans.length - 100)} older ones</p> : null}
      {found.completeSinceMs > start ? (
        <p class="dim pad">Complete since {date(found.completeSinceMs)}. What was before is not kept.</p>
      ) : null}
      {found.cut ? <p class="dim pad">There were more changes than one page has; the oldest are left out.</p> : null}
    </>
  );
}
