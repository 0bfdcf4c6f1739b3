// A network drawn from input to output: each layer as wide as its activations are many, with its shape and parameters.
import { count } from "../format";

interface Layer {
  name: string;
  kind: string;
  shape: number[];
  parameters: number;
  note?: string;
}

const size = (layer: Layer) =>
  Math.max(
    1,
    layer.shape.reduce((product, side) => product * side, 1),
  );

export function Layers({ layers }: { layers: Layer[] }) {
  const widest = Math.log(Math.max(...layers.map(size)) + 1);
  const width = (layer: Layer) => 12 + 88 * (Math.log(size(layer) + 1) / widest);
  const kinds = [...new Set(layers.map((layer) => layer.kind))];
  const total = layers.reduce((sum, layer) => sum + (layer.parameters || 0), 0);
  return (
    <figure class="layers">
      <ol>
        {layers.map((layer, index) => {
          const [own, next] = [width(layer), layers[index + 1] ? width(layers[index + 1]!) : null];
          return (
            <li key={index}>
              <span class="layer-name">
                {layer.name}
                {layer.note && <small> {layer.note}</small>}
              </span>
              <svg viewBox="0 0 100 34" preserveAspectRatio="none" aria-hidden="true">
                <rect class={`hue-${kinds.indexOf(layer.kind) % 6}`} x={50 - own / 2} width={own} y="0" height="20" />
                {next !== null && (
                  <polygon class="funnel" points={`${50 - own / 2},20 ${50 + own / 2},20 ${50 + next / 2},34 ${50 - next / 2},34`} />
                )}
              </svg>
              <span class="layer-figures">
                {layer.shape.join(" × ")}
                {layer.parameters ? <small> {count(layer.parameters)} parameters</small> : null}
              </span>
            </li>
          );
        })}
      </ol>
      <figcaption>
        {kinds.map((kind, index) => (
          <span key={kind} class="key">
            <i class={`hue-${index % 6}`} /> {kind}
          </span>
        ))}
        <span class="quiet">{count(total)} parameters in all; width: how many activations (on a logarithmic scale)</span>
      </figcaption>
    </figure>
  );
}
