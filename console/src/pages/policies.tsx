import { useState } from "preact/hooks";
import { ALGORITHMS, ALGORITHM_TEXT, Children, Policy, call } from "../api";
import { Action, Confirm } from "../actions";
import { plural, quoted, shown } from "../format";
import { usePoll } from "../state";
import { Card, Command, Empty, Page, Problem } from "../ui";

async function all(): Promise<Policy[]> {
  const rows: Policy[] = [];
  for (let page = 0; page < 8; page++) {
    const found = await call<{ rows: Policy[]; done: boolean }>("listNamespacePolicies", {
      after: rows.at(-1)?.namespace ?? "",
      page: 512,
    });
    rows.push(...found.rows);
    if (found.done || !found.rows.length) break;
  }
  return rows;
}

/** Says how much a change would end. */
function useAffected(namespace: string): string {
  const found = usePoll(
    async () => {
      if (!namespace.includes(":")) return null;
      const colon = namespace.indexOf(":");
      const slash = namespace.lastIndexOf("/");
      const parent = slash > colon + 1 ? namespace.slice(0, slash) : namespace.slice(0, colon);
      const name = namespace.slice(slash + 1);
      const page = await call<Children>("listChildren", { prefix: parent, after: "", page: 512 });
      return page.children.find((child) => child.name === name) ?? null;
    },
    3000,
    `affected ${namespace}`,
  );
  const child = found.data;
  if (!child) return "Nothing is held or waited for there now.";
  return `${plural(child.holds, "hold")} and ${plural(child.waiters, "waiter")} there now would end.`;
}

export function Policies() {
  const rows = usePoll(all, 3000, "policies");
  return (
    <Page
      title="Policies"
      sub="How the locks of a namespace conflict"
      actions={
        <Action label="Set a policy" verb="policy">
          {(close) => <SetPolicy close={close} done={rows.refresh} />}
        </Action>
      }
    >
      <Problem error={rows.error} />
      {rows.data && !rows.data.length ? (
        <Empty title="No policies">
          <p>Every namespace uses the default of the cluster. A policy changes how locks of one namespace conflict:</p>
          <Command text="tenure policy set jobs:/pool semaphore" />
        </Empty>
      ) : (
        <Card wide title="Namespaces with a policy" note={plural(rows.data?.length ?? 0, "row")}>
          <div class="scroll">
            <table>
              <thead>
                <tr>
                  <th>Namespace</th>
                  <th>Algorithm</th>
                  <th>Meaning</th>
                  <th>
                    <span class="sr">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {rows.data?.slice(0, 500).map((row) => (
                  <tr key={row.namespace}>
                    <td>
                      <bdi class="path">{shown(row.namespace, 60)}</bdi>
                    </td>
                    <td>
                      <span class="tag">{ALGORITHMS[row.algorithm]}</span>
                    </td>
                    <td class="grow dim">{ALGORITHM_TEXT[row.algorithm]}</td>
                    <td class="right">
                      <Action label="Remove" verb="policy" path={row.namespace} danger>
                        {(close) => <RemovePolicy row={row} close={close} done={rows.refresh} />}
                      </Action>
                    </td>
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

function SetPolicy({ close, done }: { close: () => void; done: () => void }) {
  const [namespace, setNamespace] = useState("");
  const [algorithm, setAlgorithm] = useState(4);
  const affected = useAffected(namespace);
  return (
    <Confirm
      title="Set a policy"
      close={close}
      danger
      ready={namespace.trim() !== ""}
      label="Set the policy"
      done="The policy was set"
      command={`tenure policy set --force ${quoted(namespace || "NAMESPACE")} ${ALGORITHMS[algorithm]}`}
      act={async () => {
        await call("setNamespacePolicy", { namespace, algorithm });
        done();
      }}
    >
      <label class="field">
        Namespace
        <input placeholder="jobs:/pool" value={namespace} onInput={(event) => setNamespace(event.currentTarget.value.trim())} />
      </label>
      <label class="field">
        Algorithm
        <select value={algorithm} onChange={(event) => setAlgorithm(Number(event.currentTarget.value))}>
          {ALGORITHMS.map((name, i) => (
            <option key={name} value={i}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <p class="dim">{ALGORITHM_TEXT[algorithm]}</p>
      <p>A change of the algorithm ends every hold and every wait in the namespace. {affected}</p>
    </Confirm>
  );
}

function RemovePolicy({ row, close, done }: { row: Policy; close: () => void; done: () => void }) {
  const affected = useAffected(row.namespace);
  return (
    <Confirm
      title="Remove the policy"
      close={close}
      danger
      label="Remove"
      done="The policy was removed"
      command={`tenure policy rm --force ${quoted(row.namespace)}`}
      act={async () => {
        await call("deleteNamespacePolicy", { namespace: row.namespace });
        done();
      }}
    >
      <p>
        <bdi class="path">{shown(row.namespace, 80)}</bdi> uses the default of the cluster again. {affected}
      </p>
    </Confirm>
  );
}
