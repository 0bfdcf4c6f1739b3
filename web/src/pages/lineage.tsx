// Who was made from whom: generations from left to right, size by offspring, colour by score; two of them compared.
import { useMemo, useState } from "preact/hooks";
import { type Lineage, type LineageNode, runPath } from "../api";
import { heatColour } from "../colours";
import { useWidth } from "../drawings/axis";
import { WordDiff } from "../drawings/diff";
import { Ramp } from "../drawings/grid";
import { count, number, plural } from "../format";
import { edge, family, type Known, layout, type Place, type Plan, step } from "../kinship";
import { Card, Notice, Wait } from "../parts";
import { choose, href, type Route } from "../router";
import { Sortable } from "../sections";
import { useLoad } from "../store";
import { partOf, scaleOf, unitName, useTexts, wayText } from "../trial_parts";

export function LineagePage({ route }: { route: Route }) {
  const loaded = useLoad<Lineage>(`${runPath(route.ledger, route.run)}/lineage`);
  return <Wait of={loaded}>{(data) => <Tree data={data} route={route} />}</Wait>;
}

function Tree({ data, route }: { data: Lineage; route: Route }) {
  const base = href(route.ledger, route.run);
  const [at, setAt] = useState<number | null>(null);
  const chosen = ["a", "b"].map((name) => route.query.get(name)).map((text) => (text === null ? null : Number(text)));
  const known = useMemo(() => new Map(data.nodes.map((node) => [node.trial, node])), [data]);
  const pick = (trial: number) => {
    const [a, b] = chosen;
    if (a === trial) choose({ a: b, b: null });
    else if (b === trial) choose({ b: null });
    else choose(a === null ? { a: trial } : { a: b === null ? a : b, b: trial });
  };
  if (!data.nodes.length)
    return (
      <Card title="Lineage">
        <p>No {unitName(false)} was made yet.</p>
      </Card>
    );
  return (
    <>
      <Card title="Lineage">
        <p class="text quiet">
          Generations from left to right. Larger: more offspring. The ringed ones led to the best. Choose two to compare their texts.
        </p>
        {data.thinned > 0 && <Notice>{count(data.thinned)} without offspring are left out to keep the drawing readable.</Notice>}
        <Drawing nodes={data.nodes} known={known} at={at} chosen={chosen} show={setAt} pick={pick} />
        <Legend nodes={data.nodes} />
        <p class="lineage-readout" role="status">
          {at !== null && known.has(at) ? (
            <Words node={known.get(at)!} base={base} />
          ) : (
            <span class="quiet">Point at one, or move with the arrow keys; Enter chooses it.</span>
          )}
        </p>
      </Card>
      <Compared chosen={chosen} known={known} route={route} />
      <Ways ways={data.ways} />
    </>
  );
}

/** What each way of making paid. A candidate made in several steps, such as `crossover+swap`, counts for each of them. */
function Ways({ ways }: { ways: Lineage["ways"] }) {
  if (!ways.length) return null;
  const single = new Map<string, Lineage["ways"][number]>();
  for (const { by, made, better, best } of ways)
    for (const step of new Set(by.split("+").map((part) => part.trim() || "start"))) {
      const sum = single.get(step) ?? { by: step, made: 0, better: 0, best: null };
      const highest = best === null || (sum.best !== null && sum.best > best) ? sum.best : best;
      single.set(step, { by: step, made: sum.made + made, better: sum.better + better, best: highest });
    }
  const rows = [...single.values()]
    .sort((a, b) => b.made - a.made)
    .map(({ by, made, better, best }) => [
      { value: by },
      { value: made },
      { value: better },
      { value: made ? better / made : null, shown: made ? `${Math.round((100 * better) / made)} %` : "–" },
      { value: best },
    ]);
  return (
    <Card title="Ways of making, and what they paid">
      {ways.some((way) => way.by.includes("+")) && <p class="quiet">What was made in several steps counts for each of them.</p>}
      <Sortable label="Ways of making" columns={["Way", "Made", "Better than their parents", "Share", "Best score"]} rows={rows} />
    </Card>
  );
}

function Words({ node, base }: { node: LineageNode; base: string }) {
  return (
    <>
      <a href={`${base}/trial/${node.trial}`}>
        <b>
          {unitName()} {node.trial}
        </b>
      </a>
      , score {number(node.score)}, {node.by ? `made by ${wayText(node.by)}` : "a start"}
      {node.parents.length > 0 && <> of {node.parents.join(" and ")}</>},{" "}
      {node.offspring ? plural(node.offspring, "child", "children") : "no children"}. <span class="quiet">{node.brief}</span>
    </>
  );
}

function Legend({ nodes }: { nodes: LineageNode[] }) {
  const scale = scaleOf(nodes.map((node) => node.score));
  if (!scale) return null;
  return (
    <p class="keys">
      <span class="scale">
        score {number(scale[0])} <Ramp /> {number(scale[1])}
      </span>
      <span class="key">
        <i class="no-score" /> no score
      </span>
      <span class="key">
        <i class="ring" /> led to the best
      </span>
    </p>
  );
}

interface Drawn {
  nodes: LineageNode[];
  known: Known;
  at: number | null;
  chosen: (number | null)[];
  show: (trial: number) => void;
  pick: (trial: number) => void;
}

function Drawing({ nodes, known, at, chosen, show, pick }: Drawn) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const plan = useMemo(() => (width ? layout(nodes, width) : null), [nodes, width]);
  const scale = scaleOf(nodes.map((node) => node.score));
  const ground = useMemo(() => plan && <Ground plan={plan} />, [plan]);
  const dots = useMemo(
    () =>
      plan && (
        <g>
          {[...plan.places.values()].map((place) => (
            <Dot key={place.node.trial} place={place} scale={scale} />
          ))}
        </g>
      ),
    [plan, scale?.join()],
  );
  const near = useMemo(() => (at === null ? null : family(at, nodes, known)), [at, nodes, known]);
  const onNode = (event: Event, act: (trial: number) => void) => {
    const trial = (event.target as Element).closest("[data-trial]")?.getAttribute("data-trial");
    if (trial) act(Number(trial));
  };
  const keys = (event: KeyboardEvent) => {
    const next = plan && step(event.key, at, nodes, plan);
    if (next !== null) show(next);
    else if ((event.key === "Enter" || event.key === " ") && at !== null) pick(at);
    else return;
    event.preventDefault();
    const place = next === null ? null : plan?.places.get(next);
    if (place && ref.current) ref.current.scrollLeft = place.x - width / 2;
  };
  const label = `Lineage of ${plural(nodes.length, unitName(false))}. Arrow keys move, Enter chooses.`;
  return (
    <div ref={ref} class="scroll lineage" tabIndex={0} role="application" aria-label={label} onKeyDown={keys}>
      {plan && (
        <svg
          width={plan.width}
          height={plan.height}
          aria-hidden="true"
          class={near ? "focused" : ""}
          onPointerOver={(event) => onNode(event, show)}
          onClick={(event) => onNode(event, pick)}>
          {ground}
          {near && <path class="edge near" d={lines(plan, (parent, child) => near.has(parent.node.trial) && near.has(child.node.trial))} />}
          {dots}
          {[at, ...chosen].map(
            (trial, index) =>
              trial !== null &&
              plan.places.has(trial) && <Ring key={index} place={plan.places.get(trial)!} letter={["", "A", "B"][index]} />,
          )}
        </svg>
      )}
    </div>
  );
}

/** All lines between these candidates as one path: thousands of them are drawn and changed at once. */
function lines(plan: Plan, of: (parent: Place, child: Place) => boolean): string {
  const parts = [...plan.places.values()].flatMap((child) =>
    child.node.parents
      .map((parent) => plan.places.get(parent))
      .filter((parent) => !!parent && of(parent, child))
      .map((parent) => edge(parent!, child)),
  );
  return parts.join("");
}

/** What does not change while a person looks around: numbers of generations and lines. */
function Ground({ plan }: { plan: Plan }) {
  const every = Math.ceil(plan.titles.length / Math.max(1, plan.width / 46));
  const led = (parent: Place, child: Place) => parent.node.line && child.node.line;
  return (
    <g class="ground">
      {plan.titles.map(
        (title, index) =>
          index % every === 0 && (
            <text key={title.name} x={title.x} y="14" text-anchor="middle">
              {title.name}
            </text>
          ),
      )}
      <text x={plan.width / 2} y={plan.height - 6} text-anchor="middle">
        generation
      </text>
      <path class="edge" d={lines(plan, (parent, child) => !led(parent, child))} />
      <path class="edge line" d={lines(plan, led)} />
    </g>
  );
}

function Dot({ place: { node, x, y, radius }, scale }: { place: Place; scale: [number, number] | null }) {
  const colour = node.score === null || !scale ? {} : { fill: heatColour(partOf(node.score, scale)) };
  return (
    <circle
      data-trial={node.trial}
      class={["node", node.line && "line", node.score === null && "no-score"].filter(Boolean).join(" ")}
      cx={x}
      cy={y}
      r={radius}
      {...colour}
    />
  );
}

function Ring({ place: { node, x, y, radius }, letter }: { place: Place; letter: string }) {
  return (
    <g class="chosen-node" data-trial={node.trial}>
      <circle cx={x} cy={y} r={radius + 2} />
      {letter && (
        <text x={x} y={y - radius - 5} text-anchor="middle">
          {letter}
        </text>
      )}
    </g>
  );
}

function Compared({ chosen: [a, b], known, route }: { chosen: (number | null)[]; known: Known; route: Route }) {
  const both = a !== null && b !== null;
  const { data, error } = useTexts(route, both ? [a, b] : null);
  if (a === null) return null;
  if (b === null)
    return (
      <Card title={`${unitName()} ${a} is A`}>
        <p class="quiet">Choose another to compare it with.</p>
      </Card>
    );
  const name = (trial: number) =>
    `${unitName(false)} ${trial}${known.get(trial)?.score != null ? ` (${number(known.get(trial)!.score)})` : ""}`;
  return (
    <Card
      title={`${name(a)} and ${name(b)}`}
      tools={
        <button type="button" onClick={() => choose({ a: null, b: null })}>
          Clear
        </button>
      }>
      {data ? (
        <WordDiff before={data.texts[a] ?? ""} after={data.texts[b] ?? ""} beforeName={name(a)} afterName={name(b)} />
      ) : (
        <p class={error ? "bad" : "quiet"} role="status">
          {error || "Loading …"}
        </p>
      )}
    </Card>
  );
}
