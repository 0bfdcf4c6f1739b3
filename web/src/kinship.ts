// Where the drawing of a lineage puts each candidate, and who is related to whom.
import type { LineageNode } from "./api";

export interface Place {
  node: LineageNode;
  x: number;
  y: number;
  radius: number;
}
export interface Plan {
  places: Map<number, Place>;
  width: number;
  height: number;
  titles: { x: number; name: number }[];
}
export type Known = Map<number, LineageNode>;

const MARGIN = 20;
const TITLES = 14; // room for the numbers of the generations, and for the axis title below
const TALLEST = 40; // candidates of a generation that stand above each other; more take several lanes

/** Generations from left to right; in each, candidates stand in the order of their parents' middle. */
export function layout(nodes: LineageNode[], width: number): Plan {
  const generations = new Map<number, LineageNode[]>();
  for (const node of nodes) generations.set(node.generation, [...(generations.get(node.generation) ?? []), node]);
  const order = [...generations.keys()].sort((a, b) => a - b);
  const tall = Math.min(TALLEST, Math.max(...[...generations.values()].map((list) => list.length)));
  const room = Math.max(15, Math.min(44, 300 / tall)); // pixels for each of them
  const lanesOf = (name: number) => Math.ceil(generations.get(name)!.length / tall);
  const lanes = order.reduce((sum, name) => sum + lanesOf(name), 0);
  const gap = Math.min(200, Math.max(16, (width - 2 * MARGIN) / Math.max(1, lanes - 1)));
  const places = new Map<number, Place>();
  const titles: Plan["titles"] = [];
  let lane = 0;
  for (const name of order) {
    const list = generations.get(name)!.map((node) => ({ node, middle: middle(node, places, (tall * room) / 2) }));
    list.sort((a, b) => a.middle - b.middle || a.node.trial - b.node.trial);
    const own = lanesOf(name);
    const spread = (tall * room) / Math.ceil(list.length / own);
    titles.push({ x: MARGIN + (lane + (own - 1) / 2) * gap, name });
    list.forEach(({ node }, index) => {
      const [x, y] = [MARGIN + (lane + (index % own)) * gap, TITLES + MARGIN + (Math.floor(index / own) + 0.5) * spread];
      places.set(node.trial, { node, x, y, radius: Math.min(room / 2, 12, 4 + room / 30 + 1.5 * Math.sqrt(node.offspring)) });
    });
    lane += own;
  }
  return { places, width: 2 * MARGIN + Math.max(0, lane - 1) * gap, height: 2 * (TITLES + MARGIN) + tall * room, titles };
}

function middle(node: LineageNode, places: Map<number, Place>, start: number): number {
  const heights = node.parents.map((parent) => places.get(parent)?.y).filter((y) => y !== undefined);
  return heights.length ? heights.reduce((sum, y) => sum + y, 0) / heights.length : start;
}

/** The line from a parent to its child. */
export function edge(from: Place, to: Place): string {
  const bend = (to.x - from.x) / 2;
  return `M${from.x} ${from.y}C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`;
}

/** A candidate with all its ancestors and descendants. */
export function family(trial: number, nodes: LineageNode[], known: Known): Set<number> {
  const kin = new Set([trial]);
  for (const child of kin) for (const parent of known.get(child)?.parents ?? []) kin.add(parent);
  const down = new Set([trial]);
  for (const node of [...nodes].sort((a, b) => a.generation - b.generation))
    if (node.parents.some((parent) => down.has(parent))) down.add(node.trial);
  return new Set([...kin, ...down]);
}

/** Where a key leads: to a parent, to a child (rather one that led to the best), or to the neighbour in the same lane. */
export function step(key: string, at: number | null, nodes: LineageNode[], { places }: Plan): number | null {
  if (!/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(key)) return null;
  const here = at === null ? undefined : places.get(at);
  if (key === "End") return nodes.findLast((node) => node.line)?.trial ?? nodes[nodes.length - 1].trial;
  if (!here || key === "Home") return nodes[0].trial;
  if (key === "ArrowLeft") return here.node.parents.find((parent) => places.has(parent)) ?? at;
  if (key === "ArrowRight") {
    const children = nodes.filter((node) => node.parents.includes(here.node.trial));
    return (children.find((node) => node.line) ?? children[0])?.trial ?? at;
  }
  const lane = [...places.values()].filter((place) => place.x === here.x).sort((a, b) => a.y - b.y);
  return lane[lane.indexOf(here) + (key === "ArrowDown" ? 1 : -1)]?.node.trial ?? at;
}
