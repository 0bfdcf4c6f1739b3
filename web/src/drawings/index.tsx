// The pictures that sections bring as data.  A kind that is not known draws nothing: text and table say it in words.
import { Component, type ComponentChildren, type ComponentType } from "preact";
import { Conversation } from "./conversation";
import { WordDiff } from "./diff";
import { Grid } from "./grid";
import { Images } from "./images";
import { Layers } from "./layers";
import { Replay } from "./replay";
import { Bars, Intervals } from "./rows";
import { Scatter } from "./scatter";

const Diff = (data: { before: string; after: string; before_name: string; after_name: string }) => (
  <WordDiff before={data.before} after={data.after} beforeName={data.before_name} afterName={data.after_name} />
);

const KINDS: { [kind: string]: ComponentType<any> } = {
  diff: Diff,
  intervals: Intervals,
  scatter: Scatter,
  grid: Grid,
  conversation: Conversation,
  layers: Layers,
  replay: Replay,
  images: Images,
  bars: Bars,
};

export function Drawing({ kind, data, base }: { kind: string; data: object; base: string }) {
  const Kind = Object.hasOwn(KINDS, kind) ? KINDS[kind] : undefined;
  return Kind ? (
    <Guard>
      <Kind {...data} base={base} />
    </Guard>
  ) : null;
}

/** A drawing whose data another version wrote must not take the page with it. */
class Guard extends Component<{ children: ComponentChildren }, { broken: boolean }> {
  override state = { broken: false };
  override componentDidCatch() {
    this.setState({ broken: true });
  }
  override render() {
    return this.state.broken ? <p class="quiet">This drawing cannot be shown.</p> : this.props.children;
  }
}
