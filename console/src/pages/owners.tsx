import { useState } from "preact/hooks";
import { MODES, Waits, call } from "../api";
import { Ask, ForceRelease } from "../actions";
import { count, plural, principal, shown } from "../format";
import { go, link, usePoll } from "../state";
import { Card, FirstLock, OwnerLink, Page, PathLink, Pill, Problem, Since } from "../ui";

type Dump = { entries: { owner: string; path: string; mode: number }[]; nextCursor: number[]; done: boolean };

/** Reads the first holds: enough for a list, whatever the number of locks. */
async function owners() {
  const found = new Map<string, { holds: number; sample: string }>();
  let cursor: number[] = [];
  let done = false;
  for (let page = 0; page < 12 && !done && found.size < 500; page++) {
    const dump: Dump = await call<Dump>("dumpLocks", { cursor, ownerPage: 512, readTree: true });
    for (const entry of dump.entries) {
      const one = found.get(entry.owner) ?? { holds: 0, sample: entry.path };
      one.holds += 1;
      found.set(entry.owner, one);
    }
    cursor = dump.nextCursor;
    done = dump.done;
    // Most groups of a small daemon are empty, and each is a page.
    if (!dump.entries.length && page > 4) page -= 1;
  }
  return { found, done };
}

export function Owners() {
  const [text, setText] = useState("");
  const list = usePoll(owners, 4000, "owners");
  const waits = usePoll(() => call<Waits>("listWaits", { page: 512 }), 2000, "waits");
  const waiting = new Map<string, number>();
  for (const wait of waits.data?.waits ?? []) waiting.set(wait.owner, (waiting.get(wait.owner) ?? 0) + 1);
  const names = new Set([...(list.data?.found.keys() ?? []), ...waiting.keys()]);
  // Without the holds the list would say that an owner has none.
  const rows = [...(list.data ? names : [])]
    .filter((name) => name.toLowerCase().includes(text.toLowerCase()))
    .map((name) => ({ name, holds: list.data?.found.get(name)?.holds ?? 0, waits: waiting.get(name) ?? 0 }))
    .sort((a, b) => b.holds - a.holds || b.waits - a.waits || a.name.localeCompare(b.name));
  return (
    <Page title="Owners" sub="Everything that holds or waits for a lock">
      <Problem error={list.error} />
      <form
        class="toolbar"
        onSubmit={(event) => {
          event.preventDefault();
          if (text) go(link("owner", text));
        }}
      >
        <input
          class="filter wide"
          placeholder="Owner contains…, Enter opens exactly this owner"
          aria-label="Owner"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </form>
      {list.data && !names.size ? (
        <FirstLock />
      ) : (
        <Card wide title="Owners" note={!list.data ? "loading…" : !list.data.done ? "of the first holds: search to find another" : plural(rows.length, "owner")}>
          <div class="scroll">
            <table>
              <thead>
                <tr>
                  <th>Owner</th>
                  <th>Principal</th>
                  <th class="right">Holds</th>
                  <th class="right">Waits</th>
                </tr>
              </thead>
              <tbody>
                {rows.slice(0, 200).map((row) => (
                  <tr key={row.name}>
                    <td class="grow">
                      <OwnerLink owner={row.name} />
                    </td>
                    <td class="dim">{shown(principal(row.name) || "anonymous", 40)}</td>
                    <td class="right number">{count(row.holds)}</td>
                    <td class="right number">{count(row.waits)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {rows.length > 200 ? <p class="dim pad">and {count(rows.length - 200)} more</p> : null}
        </Card>
      )}
    </Page>
  );
}

type Owned = { alive: boolean; locks: { path: string; mode: number }[] };

export function Owner({ owner }: { owner: string }) {
  const owned = usePoll(() => call<Owned>("listOwnerLocks", { ownerId: owner, readTree: true }), 1500, `owner ${owner}`);
  const waits = usePoll(() => call<Waits>("listWaits", { page: 512 }), 1500, "waits");
  const own = waits.data?.waits.filter((wait) => wait.owner === owner) ?? [];
  const behind = waits.data?.waits.filter((wait) => wait.blockers.includes(owner)) ?? [];
  const locks = owned.data?.locks ?? [];
  const alive = owned.data && (owned.data.alive || own.length > 0);
  return (
    <Page
      title={
        <>
          <bdi class="path title">{shown(owner, 160)}</bdi>{" "}
          {owned.data ? alive ? <Pill tone="good">alive</Pill> : <Pill tone="calm">has nothing</Pill> : null}
        </>
      }
      sub={
        <>
          <a href={link("owners")}>Owners</a> · principal {shown(principal(owner) || "anonymous", 60)}
        </>
      }
      actions={
        locks.length || own.length ? (
          <>
            {locks[0] ? <Ask owner={owner} path={locks[0].path} /> : null}
            <ForceRelease owner={owner} />
          </>
        ) : null
      }
    >
      <Problem error={owned.error} />
      <div class="grid">
        <Card title="Holds" note={plural(locks.length, "lock")}>
          <table>
            <tbody>
              {locks.slice(0, 200).map((lock) => (
                <tr key={`${lock.path} ${lock.mode}`}>
                  <td class="grow">
                    <PathLink path={lock.path} most={70} />
                  </td>
                  <td>{MODES[lock.mode]}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {!locks.length ? <p class="dim pad">It holds nothing.</p> : null}
          {locks.length > 200 ? <p class="dim pad">and {count(locks.length - 200)} more</p> : null}
        </Card>
        <div class="column">
          <Card title="Waits for" note={plural(own.length, "request")}>
            {own.map((wait) => (
              <p class="pad" key={wait.path}>
                <PathLink path={wait.path} most={60} /> ({MODES[wait.mode]}) for <Since ms={wait.waitedMs} at={waits.at} />, behind{" "}
                {wait.blockers.slice(0, 3).map((one, i) => (
                  <span key={one}>
                    {i ? ", " : ""}
                    <OwnerLink owner={one} />
                  </span>
                ))}
                {wait.blockers.length > 3 ? ` and ${wait.blockers.length - 3} more` : ""}
              </p>
            ))}
            {!own.length ? <p class="dim pad">It waits for nothing.</p> : null}
          </Card>
          <Card title="Wait for it" note={plural(behind.length, "request")}>
            {behind.slice(0, 20).map((wait) => (
              <p class="pad" key={`${wait.owner} ${wait.path}`}>
                <OwnerLink owner={wait.owner} holder={wait.holder} /> wants <PathLink path={wait.path} most={60} />
              </p>
            ))}
            {!behind.length ? <p class="dim pad">No request waits for it.</p> : null}
          </Card>
        </div>
      </div>
    </Page>
  );
}
