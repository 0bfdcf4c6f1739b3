// An episode on a network, step by step: hosts in columns by group, their state, and who moved where.
import { useEffect, useMemo, useState } from "preact/hooks";
import { number } from "../format";
import { axis, useWidth } from "./axis";

interface Node {
  id: string;
  name: string;
  group: string;
}
interface Step {
  title: string;
  states: { [id: string]: string };
  moves: { who: string; action: string; node: string | null }[];
  value: number | null;
}
export interface Episode {
  nodes: Node[];
  links: [string, string][];
  states: { [state: string]: string };
  steps: Step[];
}

const ROW = 54,
  TALL = 38,
  HEAD = 30,
  EDGE = 14;

export function Replay(episode: Episode) {
  const [at, setAt] = useState(0);
  const [playing, setPlaying] = useState(false);
  const last = episode.steps.length - 1;
  const seen = useMemo(() => statesOf(episode.steps), [episode.steps]);
  const step = episode.steps[Math.min(at, last)];
  useEffect(() => {
    if (!playing) return;
    const timer = setInterval(() => setAt((now) => Math.min(now + 1, last)), 700);
    return () => clearInterval(timer);
  }, [playing, last]);
  useEffect(() => {
    if (at >= last) setPlaying(false);
  }, [at, last]);
  if (!step) return null;
  const toggle = () => {
    if (at >= last) setAt(0);
    setPlaying(!playing);
  };
  const move = (to: number) => {
    setPlaying(false);
    setAt(Math.max(0, Math.min(last, to)));
  };
  return (
    <figure class="replay">
      <Network {...episode} step={{ ...step, states: seen[Math.min(at, last)] }} />
      <div
        class="controls"
        role="group"
        aria-label="Replay"
        onKeyDown={(event) => {
          if (event.key === " " && event.target instanceof HTMLInputElement) {
            event.preventDefault();
            toggle();
          }
        }}>
        <button type="button" onClick={() => move(at - 1)} disabled={at === 0} aria-label="Previous step">
          ‹
        </button>
        <button type="button" onClick={toggle}>
          {playing ? "Pause" : at >= last ? "Play again" : "Play"}
        </button>
        <button type="button" onClick={() => move(at + 1)} disabled={at >= last} aria-label="Next step">
          ›
        </button>
        <input
          type="range"
          min={0}
          max={last}
          value={at}
          aria-label="Step"
          aria-valuetext={`${at + 1} of ${last + 1}: ${step.title}`}
          onInput={(event) => move(Number(event.currentTarget.value))}
        />
        <span class="at">
          {at + 1} / {last + 1}
        </span>
      </div>
      <Values steps={episode.steps} at={at} choose={move} />
      <figcaption>
        <b>{step.title}</b>
        <ul class="moves">
          {step.moves.map((each, index) => (
            <li key={index} class={side(each.who)}>
              <b>{each.who}</b> {each.action}
              {each.node ? ` on ${name(episode.nodes, each.node)}` : ""}
            </li>
          ))}
        </ul>
        {Object.keys(episode.states).map((state, index) => (
          <span key={state} class="key">
            <i class={`state-${Math.min(index, 4)}`} /> {episode.states[state]}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

/** The states of all hosts at each step: a step need only say those that changed. */
function statesOf(steps: Step[]): Step["states"][] {
  let states: Step["states"] = {};
  return steps.map((step) => (states = { ...states, ...step.states }));
}

const side = (who: string) => (/red|attack/i.test(who) ? "red" : /blue|defen/i.test(who) ? "blue" : "");
const name = (nodes: Node[], id: string) => nodes.find((node) => node.id === id)?.name ?? id;

function Network({ nodes, links, states, step }: Episode & { step: Step }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const groups = [...new Set(nodes.map((node) => node.group))];
  const columns = groups.map((group) => nodes.filter((node) => node.group === group));
  const tallest = Math.max(...columns.map((column) => column.length));
  const gap = width < 560 ? 14 : 48;
  const wide = Math.min(190, Math.max(84, (width - 2 * EDGE - gap * (groups.length - 1)) / groups.length));
  const spread = Math.max(gap, Math.min(150, (width - 2 * EDGE - wide * groups.length) / Math.max(1, groups.length - 1)));
  const inner = 2 * EDGE + wide * groups.length + spread * (groups.length - 1);
  const height = HEAD + tallest * ROW;
  const places = new Map<string, [number, number]>();
  columns.forEach((column, x) =>
    column.forEach((node, y) => places.set(node.id, [EDGE + x * (wide + spread), HEAD + ((tallest - column.length) / 2 + y) * ROW])),
  );
  const order = Object.keys(states);
  return (
    <div ref={ref} class="scroll">
      {width > 0 && (
        <svg
          width={inner}
          height={height}
          role="img"
          aria-label={`${step.title}. ${nodes.map((node) => `${node.name}: ${states[step.states[node.id] ?? ""] ?? "unknown"}`).join(", ")}`}>
          {groups.map((group, index) => (
            <text key={group} class="group" x={(places.get(columns[index]![0]!.id)?.[0] ?? 0) + wide / 2} y="15" text-anchor="middle">
              {group}
            </text>
          ))}
          {links.map(([from, to], index) => (
            <Link key={index} from={places.get(from)} to={places.get(to)} wide={wide} />
          ))}
          {nodes.map((node) => {
            const [x, y] = places.get(node.id)!;
            const state = step.states[node.id] ?? order[0] ?? "";
            const touched = step.moves.filter((each) => each.node === node.id).map((each) => side(each.who));
            return (
              <g key={node.id} transform={`translate(${x} ${y})`}>
                {touched.map((who, index) => (
                  <rect
                    key={index}
                    class={`touched ${who}`}
                    x={-3 - index * 3}
                    y={-3 - index * 3}
                    width={wide + 6 + index * 6}
                    height={TALL + 6 + index * 6}
                    rx="9"
                  />
                ))}
                <rect class={`host state-${Math.min(Math.max(0, order.indexOf(state)), 4)}`} width={wide} height={TALL} rx="6" />
                <text class="host-name" x={wide / 2} y={fits(states[state] ?? state, wide) ? 16 : 23} text-anchor="middle">
                  {short(node.name, wide)}
                  <title>{node.name}</title>
                </text>
                {fits(states[state] ?? state, wide) && (
                  <text class="host-state" x={wide / 2} y="30" text-anchor="middle">
                    {states[state] ?? state}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      )}
    </div>
  );
}

const fits = (text: string, wide: number) => text.length * 5.8 <= wide - 8;
const short = (text: string, wide: number) =>
  text.length * 6.6 > wide - 8 ? text.slice(0, Math.max(3, Math.floor((wide - 14) / 6.6))) + "…" : text;

function Link({ from, to, wide }: { from?: [number, number]; to?: [number, number]; wide: number }) {
  if (!from || !to) return null;
  const [left, right] = from[0] <= to[0] ? [from, to] : [to, from];
  const [y1, y2] = [left[1] + TALL / 2, right[1] + TALL / 2];
  if (left[0] === right[0]) return <path class="link" d={`M ${left[0] + wide} ${y1} q 12 ${(y2 - y1) / 2} 0 ${y2 - y1}`} />;
  const [x1, x2] = [left[0] + wide, right[0]];
  return <path class="link" d={`M ${x1} ${y1} C ${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`} />;
}

/** What each step gave, as bars from the zero line; a click goes to the step. */
function Values({ steps, at, choose }: { steps: Step[]; at: number; choose: (step: number) => void }) {
  const values = steps.map((step) => step.value);
  if (!values.some((value) => value !== null)) return null;
  const scale = axis([...values, 0]);
  const total = values.slice(0, at + 1).reduce<number>((sum, value) => sum + (value ?? 0), 0);
  const y = (value: number) => 4 + 40 * (1 - scale.at(value));
  return (
    <div class="values">
      <svg
        viewBox={`0 0 ${steps.length} 48`}
        preserveAspectRatio="none"
        aria-hidden="true"
        onClick={(event) => {
          const box = event.currentTarget.getBoundingClientRect();
          choose(Math.floor(((event.clientX - box.left) / box.width) * steps.length));
        }}>
        <rect class="now" x={at} width="1" y="0" height="48" />
        {values.map((value, index) =>
          value ? (
            <rect
              key={index}
              class={index <= at ? "bar" : "bar later"}
              x={index + 0.1}
              width="0.8"
              y={Math.min(y(0), y(value))}
              height={Math.max(0.8, Math.abs(y(value) - y(0)))}
            />
          ) : null,
        )}
      </svg>
      <span class="quiet">
        value of this step {number(values[at] ?? 0)}, so far {number(total)}
      </span>
    </div>
  );
}
