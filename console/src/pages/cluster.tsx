import { useRef } from "preact/hooks";
import { GroupStatus, NodeStatus, Status, get, post } from "../api";
import { Action, Confirm } from "../actions";
import { clock, count, duration, plural, shown } from "../format";
import { usePoll } from "../state";
import { Card, Mark, Page, Pill, Problem } from "../ui";
import { health } from "./overview";

type Change = { at: number; text: string };

/** Notes elections and moves while the page is open. */
function useChanges(status: Status | null): Change[] {
  const known = useRef<Map<number, GroupStatus>>(new Map());
  const nodes = useRef<Map<number, NodeStatus>>(new Map());
  const changes = useRef<Change[]>([]);
  const last = useRef<Status | null>(null);
  if (status && last.current !== status) {
    const names = new Map(status.nodes.map((node) => [node.number, node.name]));
    const at = Date.now();
    const note = (text: string) => changes.current.unshift({ at, text });
    const moved = new Map<string, number>();
    for (const group of status.groups) {
      const before = known.current.get(group.number);
      if (before && before.leader !== group.leader) {
        const to = group.leader ? `${names.get(group.leader) ?? group.leader} leads` : "without a leader";
        moved.set(to, (moved.get(to) ?? 0) + 1);
      }
      if (before && before.voters.join() !== group.voters.join()) {
        note(`group ${group.number}: voters ${group.voters.map((n) => names.get(n) ?? n).join(", ")}`);
      }
      known.current.set(group.number, group);
    }
    for (const [to, groups] of moved) note(`${plural(groups, "group")}: ${to}`);
    for (const node of status.nodes) {
      const before = nodes.current.get(node.number);
      if (before && before.up !== node.up) note(`${node.name} is ${node.up ? "up again" : "down"}`);
      if (before && before.draining !== node.draining) note(`${node.name} ${node.draining ? "is draining" : "no longer drains"}`);
      nodes.current.set(node.number, node);
    }
    changes.current.length = Math.min(changes.current.length, 50);
    last.current = status;
  }
  return changes.current;
}

export function Cluster() {
  const status = usePoll(() => get<Status>("/v1/cluster/status"), 2000, "cluster");
  const found = status.data;
  const changes = useChanges(found);
  const state = found ? health(found) : null;
  const names = new Map((found?.nodes ?? []).map((node) => [node.number, node.name]));
  const behind = (found?.groups ?? []).filter((group) => group.lag > 0 || group.unconfirmedVoters.length || !group.leader || group.changing);
  behind.sort((a, b) => b.lag - a.lag);
  return (
    <Page title="Cluster" sub={found ? `id ${found.clusterId || "none"} · ${plural(found.groupCount, "group")} · default ${found.defaultLockAlgorithm}` : ""}>
      <Problem error={status.error} />
      {state ? (
        <p class={`health ${state.tone}`} role="status">
          <Mark tone={state.tone} />
          <span>{shown(state.text, 300)}</span>
        </p>
      ) : null}
      <Card wide title="Nodes" note={plural(found?.nodes.length ?? 0, "node")}>
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Node</th>
                <th>State</th>
                <th class="right">For</th>
                <th class="right">Leads</th>
                <th class="right">Replicas</th>
                <th>Release</th>
                <th>Address</th>
                <th>
                    <span class="sr">Actions</span>
                  </th>
              </tr>
            </thead>
            <tbody>
              {found?.nodes.map((node) => (
                <tr key={node.number}>
                  <td>
                    {node.name}
                    {node.number === found.answeredBy ? <span class="dim"> (this one)</span> : null}
                  </td>
                  <td>
                    {!node.up ? (
                      <Pill tone="bad">down</Pill>
                    ) : node.draining ? (
                      <Pill tone="busy">draining</Pill>
                    ) : node.reported ? (
                      <Pill tone="good">up</Pill>
                    ) : (
                      <Pill tone="warn">no report</Pill>
                    )}
                  </td>
                  <td class="right number">{node.forMs ? duration(node.forMs) : "–"}</td>
                  <td class="right number">{node.leads}</td>
                  <td class="right number">{node.replicas}</td>
                  <td>{node.release || "–"}</td>
                  <td class="grow">
                    <bdi class="path">{shown(node.publicAddress || node.peerAddress || "–", 60)}</bdi>
                  </td>
                  <td class="right">
                    <span class="buttons">
                      <Drain node={node} />
                      {!node.up || node.draining ? <Remove node={node} /> : null}
                    </span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <div class="grid">
        <Card title="Groups" note="one square per group, by its leader">
          {found ? <Groups status={found} /> : null}
        </Card>
        <div class="column">
          <Card title="Groups behind" note={behind.length ? plural(behind.length, "group") : "none"}>
            {behind.length ? (
              <table>
                <thead>
                  <tr>
                    <th>Group</th>
                    <th>Leader</th>
                    <th>Slow voter</th>
                    <th class="right">Lag</th>
                  </tr>
                </thead>
                <tbody>
                  {behind.slice(0, 12).map((group) => (
                    <tr key={group.number}>
                      <td class="number">{group.number}</td>
                      <td>{group.leader ? (names.get(group.leader) ?? group.leader) : <Pill tone="bad">none</Pill>}</td>
                      <td>{group.unconfirmedVoters.map((n) => names.get(n) ?? n).join(", ") || "–"}</td>
                      <td class="right number">{count(group.lag)}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            ) : (
              <p class="dim pad">Every replica has every entry.</p>
            )}
          </Card>
          <Card title="Elections and moves" note="since this page is open">
            {changes.length ? (
              <ol class="log">
                {changes.map((change, i) => (
                  <li key={i}>
                    <time class="number dim">{clock(change.at)}</time> {shown(change.text, 120)}
                  </li>
                ))}
              </ol>
            ) : (
              <p class="dim pad">None.</p>
            )}
          </Card>
        </div>
      </div>
    </Page>
  );
}

function Groups({ status }: { status: Status }) {
  const order = status.nodes.map((node) => node.number);
  const size = 14;
  const columns = 24;
  const rows = Math.ceil(status.groups.length / columns);
  return (
    <div class="pad">
      <svg class="groups" viewBox={`0 0 ${columns * size} ${rows * size}`} role="img" aria-label={`${status.groups.length} groups: ${status.nodes.map((node) => `${node.name} leads ${node.leads}`).join(", ")}`}>
        {status.groups.map((group, i) => {
          const x = (i % columns) * size + 1;
          const y = Math.floor(i / columns) * size + 1;
          const who = order.indexOf(group.leader);
          const fine = group.leader && !group.changing && !group.unconfirmedVoters.length;
          return (
            <g key={group.number}>
              <title>
                {`group ${group.number}: ${group.leader ? `leader ${status.nodes[who]?.name ?? group.leader}` : "no leader"}, ${group.holds} held, lag ${group.lag}`}
              </title>
              <rect class={`g g${who < 0 ? "none" : who % 6}`} x={x} y={y} width={size - 2} height={size - 2} rx="2.5" />
              {fine ? null : <path class="cross" d={`M${x + 3} ${y + 3}l6 6m0-6l-6 6`} />}
            </g>
          );
        })}
      </svg>
      <p class="legend dim">
        {status.nodes.map((node, i) => (
          <span key={node.number}>
            <span class={`key g${i % 6}`} /> {node.name} leads {node.leads}{" "}
          </span>
        ))}
        <span>✕ not settled</span>
      </p>
    </div>
  );
}

function Drain({ node }: { node: NodeStatus }) {
  const undo = node.draining;
  return (
    <Action label={undo ? "Stop draining" : "Drain"} verb="operate">
      {(close) => (
        <Confirm
          title={undo ? `Stop draining ${node.name}` : `Drain ${node.name}`}
          close={close}
          label={undo ? "Stop draining" : "Drain"}
          done={undo ? "The node no longer drains" : "The node is draining"}
          command={`tenure cluster drain ${undo ? "--undo " : ""}${node.name}`}
          act={() => post("/v1/cluster/drain", { node: node.number, undo })}
        >
          <p>
            {undo
              ? "It may lead groups and hold replicas again."
              : "Its leaderships and replicas move to other nodes. It still serves clients and forwards their requests. No lock is lost."}
          </p>
        </Confirm>
      )}
    </Action>
  );
}

function Remove({ node }: { node: NodeStatus }) {
  return (
    <Action label="Remove" verb="operate" danger>
      {(close) => (
        <Confirm
          title={`Remove ${node.name} for good`}
          close={close}
          danger
          label="Remove"
          done="The node was removed"
          command={`tenure cluster remove ${node.name}`}
          act={() => post("/v1/cluster/remove", { node: node.number })}
        >
          <p>The cluster forgets this node. Its data directory cannot come back; a new one can join under its name.</p>
        </Confirm>
      )}
    </Action>
  );
}
