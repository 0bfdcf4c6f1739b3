// What failed, grouped by message: how often, when, where, and how to try it again.
import { useCallback, useRef } from "preact/hooks";
import { Retry } from "../actions";
import { type FailureGroup, type Failures, runPath } from "../api";
import { ago, count, moment, plural } from "../format";
import { Card, Command, Wait } from "../parts";
import { href, type Route } from "../router";
import { reload, useChanges, useLoad } from "../store";
import { Block } from "../texts";
import { unitName } from "../trial_parts";

export function FailuresPage({ route: { ledger, run } }: { route: Route }) {
  const path = `${runPath(ledger, run)}/failures`;
  const loaded = useLoad<Failures>(path);
  const last = useRef(0);
  useChanges(
    useCallback(
      (change) => {
        if (change.progress.failures !== last.current) {
          last.current = change.progress.failures;
          void reload(path);
        }
      },
      [path],
    ),
  );
  return <Wait of={loaded}>{(data) => <Groups data={data} base={href(ledger, run)} />}</Wait>;
}

function Groups({ data: { groups, command }, base }: { data: Failures; base: string }) {
  if (!groups.length)
    return (
      <Card title="Failures">
        <p>Nothing failed.</p>
      </Card>
    );
  const total = groups.reduce((sum, group) => sum + group.count, 0);
  return (
    <>
      <Card title={`${plural(total, "evaluation")} failed in ${plural(groups.length, "way")}`}>
        <p class="text">A failure belongs to its own evaluation. A retry evaluates only these again.</p>
        <div class="retry">
          <Retry />
          {command && <Command text={command} />}
        </div>
      </Card>
      {groups.map((group, at) => (
        <Group key={`${group.kind} ${group.message}`} group={group} base={base} open={at === 0} />
      ))}
    </>
  );
}

function Group({ group, base, open }: { group: FailureGroup; base: string; open: boolean }) {
  return (
    <details class="card failure-group" open={open}>
      <summary>
        <b class="count">{count(group.count)}</b> <span class="kind">{group.kind}</span> <span class="message">{group.message}</span>
      </summary>
      <p class="quiet">
        {group.first !== null && (
          <>
            first <time title={moment(group.first)}>{ago(group.first)}</time>
          </>
        )}
        {group.last !== null && group.last !== group.first && (
          <>
            , last <time title={moment(group.last)}>{ago(group.last)}</time>
          </>
        )}
      </p>
      {group.traceback && <Block text={group.traceback} label="Traceback of one of them" />}
      <p class="links">
        {group.cells.map((cell) => (
          <a key={`${cell.trial}:${cell.position}`} href={`${base}/cell/${cell.trial}/${cell.position}`}>
            {unitName(false)} {cell.trial} on {cell.case || `case ${cell.position}`}
          </a>
        ))}
        {group.count > group.cells.length && <span class="quiet">and {count(group.count - group.cells.length)} more</span>}
      </p>
    </details>
  );
}
