// The change stream: what every replica applied, newest first.
import { useRef, useState } from "preact/hooks";
import { History, HistoryEvent, KINDS, MODES, call } from "../api";
import { clock, date, plural } from "../format";
import { usePoll, useRoute } from "../state";
import { Card, Empty, Mark, Missing, OwnerLink, Page, PathLink, Problem, Tone } from "../ui";

const KEPT = 500;
const TONES: Tone[] = ["calm", "busy", "busy", "warn", "calm", "bad", "bad", "calm", "warn", "busy"];

const key = (event: HistoryEvent) => `${event.atMs} ${event.kind} ${event.path} ${event.owner} ${event.fence}`;

export function Activity() {
  const route = useRoute();
  const [kind, setKind] = useState(route.query.get("kind") ?? "");
  const [text, setText] = useState("");
  const [paused, setPaused] = useState(false);
  const rows = useRef<HistoryEvent[]>([]);
  const skipped = useRef(false);
  const found = usePoll(
    async () => {
      if (paused) return null;
      const newest = rows.current[0]?.atMs ?? 0;
      // A minute back: the clocks of leaders differ, and a change may come a little late.
      const since = newest ? newest - 2000 : Date.now() - 600_000;
      const page = await call<History>("history", { sinceMs: since, page: newest ? 1024 : KEPT });
      const known = new Set(rows.current.slice(0, 2048).map(key));
      const fresh = page.events.filter((event) => !known.has(key(event)));
      skipped.current = page.cut && newest > 0;
      rows.current = [...fresh.reverse(), ...rows.current].sort((a, b) => b.atMs - a.atMs).slice(0, KEPT);
      return page;
    },
    1000,
    `activity ${paused}`,
  );
  const wanted = text.toLowerCase();
  const list = rows.current.filter(
    (event) =>
      (!kind || KINDS[event.kind] === kind) &&
      (!wanted || `${event.path} ${event.owner} ${event.holder?.name ?? ""}`.toLowerCase().includes(wanted)),
  );
  return (
    <Page
      title="Activity"
      sub={paused ? "Paused" : "Every change, as it is applied"}
      actions={
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "Go on" : "Pause"}
        </button>
      }
    >
      <Problem error={found.error} />
      <Missing groups={found.data?.missingGroups} />
      <div class="toolbar">
        <select class="filter" aria-label="Kind" value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
          <option value="">All kinds</option>
          {KINDS.slice(2).map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        <input class="filter wide" placeholder="Path or owner contains…" aria-label="Path or owner contains" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </div>
      {skipped.current ? (
        <p class="problem" role="status">
          <Mark tone="warn" /> More changes than can be shown: the newest of each second are here.
        </p>
      ) : null}
      {found.at && !rows.current.length ? (
        <Empty title="Nothing has happened">
          <p>No lock was taken, released or waited for in the last ten minutes. Changes appear here within a second.</p>
        </Empty>
      ) : (
        <Card wide title="Changes" note={plural(list.length, "change")}>
          <div class="scroll">
            <table>
              <thead>
                <tr>
                  <th>Time</th>
                  <th>Change</th>
                  <th>Path</th>
                  <th>Owner</th>
                  <th>Mode</th>
                  <th class="right">Fence</th>
                </tr>
              </thead>
              <tbody>
                {list.slice(0, 200).map((event) => (
                  <tr key={key(event)}>
                    <td class="number" title={date(event.atMs)}>
                      {clock(event.atMs)}
                    </td>
                    <td>
                      <Mark tone={TONES[event.kind] ?? "calm"} /> {KINDS[event.kind]}
                    </td>
                    <td class="grow">
                      <PathLink path={event.path} most={70} />
                    </td>
                    <td>{event.owner ? <OwnerLink owner={event.owner} holder={event.holder} /> : "–"}</td>
                    <td>{event.kind === 9 || event.kind === 8 ? "–" : MODES[event.mode]}</td>
                    <td class="right number">{event.fence || "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
      )}
    </Page>
  );
}
