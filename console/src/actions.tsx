// Actions: a confirmation that says what happens, the equivalent command, and the verb that is needed.
import { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError, Blocker, call } from "./api";
import { quoted, shown } from "./format";
import { may, say, session, useStore } from "./state";
import { Command, Dialog, OwnerLink } from "./ui";

export function Action({
  label,
  verb,
  path,
  danger,
  children,
}: {
  label: string;
  verb: string;
  path?: string;
  danger?: boolean;
  children: (close: () => void) => ComponentChildren;
}) {
  const who = useStore(session);
  const [open, set] = useState(false);
  const allowed = may(who, verb, path);
  return (
    <>
      <button
        type="button"
        class={danger ? "danger" : ""}
        disabled={!allowed}
        title={allowed ? "" : `You lack the verb \`${verb}\``}
        onClick={() => set(true)}
      >
        {label}
      </button>
      {allowed ? null : <span class="lack">needs the verb {verb}</span>}
      {open ? children(() => set(false)) : null}
    </>
  );
}

export function Confirm({
  title,
  close,
  command,
  act,
  done,
  label,
  danger,
  ready = true,
  children,
}: {
  title: string;
  close: () => void;
  command: string;
  act: () => Promise<unknown>;
  done: string;
  label: string;
  danger?: boolean;
  ready?: boolean;
  children?: ComponentChildren;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const run = async () => {
    setBusy(true);
    setError("");
    try {
      await act();
      say(done);
      close();
    } catch (problem) {
      setBusy(false);
      setError(problem instanceof ApiError ? problem.message : String((problem as Error).message));
    }
  };
  return (
    <Dialog title={title} onClose={close}>
      {children}
      <p class="label">The same in a terminal</p>
      <Command text={command} />
      {error ? (
        <p class="problem" role="alert">
          {shown(error, 400)}
        </p>
      ) : null}
      <div class="buttons">
        <button type="button" class="quiet" onClick={close}>
          Cancel
        </button>
        <button type="button" class={danger ? "danger solid" : "solid"} disabled={busy || !ready} onClick={run}>
          {label}
        </button>
      </div>
    </Dialog>
  );
}

export function Ask({ owner, path }: { owner: string; path: string }) {
  return (
    <Action label="Ask to release" verb="ask" path={path}>
      {(close) => (
        <Confirm
          title="Ask the holder to release"
          close={close}
          command={`tenure ask --force ${quoted(path)}`}
          act={() => call("requestRevoke", { ownerId: owner })}
          done="The holder was asked to release"
          label="Ask"
        >
          <p>
            <OwnerLink owner={owner} /> gets a request to release everything that it holds. It decides itself when. Nothing
            is taken away.
          </p>
        </Confirm>
      )}
    </Action>
  );
}

export function Break({ hold, label = "Break" }: { hold: Blocker; label?: string }) {
  const [reason, setReason] = useState("");
  return (
    <Action label={label} verb="break" path={hold.path} danger>
      {(close) => (
        <Confirm
          title="Break this hold"
          close={close}
          danger
          ready={reason.trim() !== ""}
          command={`tenure break --force --id ${quoted(hold.owner)} --reason ${quoted(reason || "…")} ${quoted(hold.path)}`}
          act={() =>
            call("break", { path: hold.path, ownerId: hold.owner, fence: hold.fence, reason, actor: "console" })
          }
          done="The hold was broken"
          label="Break the hold"
        >
          <p>
            <OwnerLink owner={hold.owner} holder={hold.holder} /> loses{" "}
            <bdi class="path">{shown(hold.path, 120)}</bdi> at once
            {hold.fence ? `, with fence ${hold.fence}` : ""}. If it is alive and still writes, its work may be
            lost or mixed with that of the next holder, unless the store checks fences.
          </p>
          <p class="dim">Nothing happens if another holder has it by then.</p>
          <label class="field">
            Reason, for the audit log
            <input value={reason} onInput={(event) => setReason(event.currentTarget.value)} maxLength={200} />
          </label>
        </Confirm>
      )}
    </Action>
  );
}

export function ForceRelease({ owner }: { owner: string }) {
  return (
    <Action label="End everything it has" verb="break" danger>
      {(close) => (
        <Confirm
          title="End everything that this owner has"
          close={close}
          danger
          command={`curl -H 'content-type: application/json' -d ${quoted(JSON.stringify({ victimId: owner }))} "$TENURE_WEB"/v1/forceRelease`}
          act={() => call("forceRelease", { victimId: owner })}
          done="Everything that the owner had was ended"
          label="End all"
        >
          <p>
            All holds and all queued requests of <OwnerLink owner={owner} /> end at once, in all namespaces. If it is alive,
            its work may be lost.
          </p>
        </Confirm>
      )}
    </Action>
  );
}
