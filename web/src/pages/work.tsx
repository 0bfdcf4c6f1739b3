// What ran where and when, how fast, on which limits, and for how much.
import { useEffect, useRef } from "preact/hooks";
import { runPath, type Span, type WorkPage as Work } from "../api";
import { Chart } from "../charts";
import { palette } from "../colours";
import { count, duration, number, plural } from "../format";
import { useKeys } from "../keys";
import { Card, Notice, Rows, Wait } from "../parts";
import { go, href, type Route } from "../router";
import { Sections } from "../sections";
import { overview, reload, useChanges, useLoad } from "../store";
import { heightOf, Timeline } from "../timeline";

const refresh = 5000; // ms between loads while the run runs

export function WorkPage(_: { route: Route }) {
  const run = overview.value!;
  const path = `${runPath(run.ledger, run.name)}/work`;
  const loaded = useLoad<Work>(path);
  const last = useRef(Date.now());
  useChanges(() => {
    if (Date.now() - last.current < refresh) return;
    last.current = Date.now();
    void reload(path);
  });
  return <Wait of={loaded}>{(work) => <Everything work={work} />}</Wait>;
}

function Everything({ work }: { work: Work }) {
  const { throughput, money } = work;
  const busy = throughput.evaluations.some((value) => value > 0);
  const calls = throughput.calls.some((value) => value > 0);
  const paid = (money.cost.at(-1) ?? 0) > 0;
  if (!work.slots.spans.length && !busy && !calls) return <Notice>Nothing has been evaluated yet.</Notice>;
  return (
    <>
      {work.counts.length > 0 && (
        <dl class="metrics">{work.counts.map(({ name, value }) => <div key={name}><dt>{name}</dt><dd>{count(value)}</dd></div>)}</dl>
      )}
      {work.slots.spans.length > 0 && <Slots slots={work.slots} />}
      <div class="columns">
        {(busy || calls) && (
          <Card>
            <Chart name="throughput" title="Throughput" across="time since the start" acrossUnit="seconds" up="per second" lines={[
              ...(busy ? [{ name: "evaluations", x: throughput.seconds, y: throughput.evaluations, plain: true }] : []),
              ...(calls ? [{ name: "model calls", x: throughput.seconds, y: throughput.calls, plain: true }] : []),
            ]} />
          </Card>
        )}
        {paid && (
          <Card>
            <Chart name="money" title="Cost so far" across="time since the start" acrossUnit="seconds" up="cost in $" upUnit="money"
              lines={[{ name: "cost", x: money.seconds, y: money.cost, fill: true, plain: true }]} />
          </Card>
        )}
        {work.latency.length > 0 && <Latency rows={work.latency} />}
      </div>
      {work.models.rows.length > 0 && <Card title="Models"><Rows table={work.models} label="Models" /></Card>}
      {work.batches.rows.length > 0 && <Card title="Batches"><Rows table={work.batches} label="Batches" /></Card>}
      {work.waves.rows.length > 0 && <Card title="Waves"><Rows table={work.waves} label="Waves" /></Card>}
      {work.sections.length > 0 && <div class="columns"><Sections sections={work.sections} /></div>}
    </>
  );
}

function Slots({ slots }: { slots: Work["slots"] }) {
  const run = overview.value!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const tip = useRef<HTMLDivElement>(null);
  const line = useRef<Timeline | null>(null);
  useEffect(() => {
    canvas.current!.style.height = `${heightOf(slots.count)}px`;
    const hover = (span: Span | null, x: number, y: number) => {
      const box = tip.current!;
      box.hidden = !span;
      if (!span) return;
      const state = span.failed ? ", failed" : span.tries > 1 ? `, ${span.tries} tries` : "";
      box.textContent = `${run.unit} ${span.trial}, case ${span.position}: ${duration(span.end - span.start)}${state}`;
      box.style.left = `${Math.min(x + 14, canvas.current!.clientWidth - box.offsetWidth)}px`;
      box.style.top = `${y + 14}px`;
    };
    line.current = new Timeline(canvas.current!, slots, hover, (span) => go(href(run.ledger, run.name, `cell/${span.trial}/${span.position}`)));
    return () => line.current!.end();
  }, [slots]);
  useEffect(() => line.current?.redraw(), [palette.value]);
  useKeys({ "+": () => line.current!.zoom(1.5), "-": () => line.current!.zoom(1 / 1.5), "0": () => line.current!.zoom(1e-9) });
  const retried = slots.spans.some((span) => span.tries > 1);
  const failed = slots.spans.some((span) => span.failed);
  return (
    <Card title="What ran when" tools={
      <span class="scale">
        <i class="box ran" /><span>evaluation</span>
        {retried && <><i class="box retried" /><span>more than one try</span></>}
        {failed && <><i class="box failed" /><span>failed</span></>}
      </span>
    }>
      <div class="slots">
        <canvas ref={canvas} role="img" aria-label={`${plural(slots.spans.length, "evaluation")} in ${plural(slots.count, "slot")}`} />
        <div class="tip" ref={tip} hidden />
      </div>
      <p class="quiet small">
        Wheel to zoom, drag to move, click an evaluation to open it.
        {slots.thinned > 0 && ` ${plural(slots.thinned, "evaluation")} left out, so that the rest can be told apart.`}
      </p>
    </Card>
  );
}

/** How long things took: a bar from the median to the 99th percentile, on a scale of powers of ten. */
function Latency({ rows }: { rows: Work["latency"] }) {
  const known = rows.filter((row) => row.p99 > 0);
  const low = Math.log10(Math.min(...known.map((row) => row.p50)) || 1e-6) - 0.1;
  const high = Math.log10(Math.max(...known.map((row) => row.p99)) || 1) + 0.1;
  const at = (value: number) => Math.max(0, Math.min(100, ((Math.log10(value || 1e-9) - low) / (high - low)) * 100));
  return (
    <Card title="Latency" wide>
      <div class="scroll" tabIndex={0} role="region" aria-label="Latency">
        <table>
          <thead>
            <tr><th scope="col"></th><th scope="col" class="number">count</th><th scope="col" class="number">median</th><th scope="col" class="number">90 %</th><th scope="col" class="number">99 %</th><th scope="col">up to 99 %, log scale</th></tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="number">{number(row.count)}</td>
                <td class="number">{duration(row.p50)}</td><td class="number">{duration(row.p90)}</td><td class="number">{duration(row.p99)}</td>
                <td>
                  <svg class="latency" viewBox="0 0 120 14" preserveAspectRatio="none" aria-hidden="true">
                    <line x1={at(row.p50) + 10} x2={at(row.p99) + 10} y1="7" y2="7" />
                    <rect x={at(row.p50) + 10} width={Math.max(0.5, at(row.p90) - at(row.p50))} y="4" height="6" />
                    <rect class="median" x={at(row.p50) + 9} width="2" y="2" height="10" />
                  </svg>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}
