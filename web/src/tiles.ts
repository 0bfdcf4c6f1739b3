// Tiles of the matrix: fetched when they are seen, painted once, kept while they fit.
import { loadBytes, type MatrixHead } from "./api";
import { heat, token } from "./colours";

export interface Tile { bytes: Uint8Array; rows: number; columns: number; pictures: Map<string, HTMLCanvasElement> }

const most = 400; // tiles kept
const inFlight = 6;
/** Tiles drawn at once; beyond that a coarser level is used. */
export const visible = 96;

export class Tiles {
  private known = new Map<string, Tile>();
  private asked = new Set<string>();
  private queue: [number, number, number][] = [];
  private running = 0;
  private ended = false;
  private colours: Uint32Array;

  constructor(readonly head: MatrixHead, private path: (level: number, row: number, column: number) => string, private drawn: () => void) {
    this.colours = colours();
  }

  end(): void {
    this.ended = true;
    this.queue = [];
  }

  /** Paints all tiles again, in the colours of the present theme. */
  repaint(): void {
    this.colours = colours();
    for (const tile of this.known.values()) tile.pictures.clear();
  }

  /** The tile, or null while it is on its way. */
  get(level: number, row: number, column: number): Tile | null {
    const key = `${level}/${row}/${column}`;
    const tile = this.known.get(key);
    if (tile) {
      this.known.delete(key);
      this.known.set(key, tile);
      return tile;
    }
    if (!this.asked.has(key)) {
      this.asked.add(key);
      this.queue.push([level, row, column]);
      this.next();
    }
    return null;
  }

  /** The byte of a cell at the finest level, or null while it is not known. */
  byte(row: number, column: number): number | null {
    const [height, width] = this.head.tile;
    const tile = this.known.get(`0/${Math.floor(row / height)}/${Math.floor(column / width)}`);
    return tile ? tile.bytes[(row % height) * tile.columns + (column % width)] : null;
  }

  /** Writes a cell that has just been evaluated. */
  put(row: number, column: number, byte: number): void {
    const [height, width] = this.head.tile;
    const tile = this.known.get(`0/${Math.floor(row / height)}/${Math.floor(column / width)}`);
    if (!tile) return;
    tile.bytes[(row % height) * tile.columns + (column % width)] = byte;
    tile.pictures.clear();
  }

  /** A tile as a picture, a pixel for each block of `down` by `across` cells. */
  picture(tile: Tile, down: number, across: number): HTMLCanvasElement {
    const key = `${down}/${across}`;
    const known = tile.pictures.get(key);
    if (known) return known;
    if (tile.pictures.size > 3) tile.pictures.clear();
    const picture = document.createElement("canvas");
    [picture.width, picture.height] = [Math.ceil(tile.columns / across), Math.ceil(tile.rows / down)];
    const image = new ImageData(picture.width, picture.height);
    const pixels = new Uint32Array(image.data.buffer);
    const bytes = down * across > 1 ? averaged(tile, down, across) : tile.bytes;
    for (let at = 0; at < pixels.length; at++) pixels[at] = this.colours[bytes[at]];
    picture.getContext("2d")!.putImageData(image, 0, 0);
    tile.pictures.set(key, picture);
    return picture;
  }

  private next(): void {
    while (this.running < inFlight && this.queue.length) {
      const [level, row, column] = this.queue.pop()!;
      this.running++;
      void this.fetch(level, row, column).finally(() => {
        this.running--;
        if (!this.ended) this.next();
      });
    }
  }

  private async fetch(level: number, row: number, column: number): Promise<void> {
    const key = `${level}/${row}/${column}`;
    try {
      const bytes = await loadBytes(this.path(level, row, column));
      if (this.ended) return;
      const [height, width] = this.head.tile;
      const size = this.head.levels[level];
      const tile = {
        bytes, pictures: new Map<string, HTMLCanvasElement>(),
        rows: Math.min(height, size.rows - row * height), columns: Math.min(width, size.columns - column * width),
      };
      // A server may fill its tiles up to their full width.
      if (bytes.length === height * width) [tile.rows, tile.columns] = [height, width];
      this.known.set(key, tile);
      for (const old of this.known.keys()) {
        if (this.known.size <= most) break;
        this.known.delete(old);
        this.asked.delete(old);
      }
      this.drawn();
    } catch {
      setTimeout(() => this.asked.delete(key), 3000);
    }
  }
}

/** The mean of each block of cells; a block without values is failed if any of its cells is. */
function averaged({ bytes, rows, columns }: Tile, down: number, across: number): Uint8Array {
  const [height, width] = [Math.ceil(rows / down), Math.ceil(columns / across)];
  const sums = new Uint32Array(height * width);
  const counts = new Uint16Array(height * width);
  const means = new Uint8Array(height * width);
  for (let row = 0, at = 0; row < rows; row++)
    for (let column = 0; column < columns; column++, at++) {
      const block = Math.floor(row / down) * width + Math.floor(column / across);
      if (bytes[at] === 1) means[block] = 1;
      else if (bytes[at]) (sums[block] += bytes[at]), counts[block]++;
    }
  for (let block = 0; block < means.length; block++) if (counts[block]) means[block] = Math.round(sums[block] / counts[block]);
  return means;
}

/** The colour of each byte: 0 nothing, 1 failed, then the scale. */
function colours(): Uint32Array {
  const table = new Uint32Array(256);
  const parts = (colour: string) => (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
  const packed = ([red, green, blue]: number[]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  table[0] = packed(parts(token("--raise")));
  table[1] = packed(parts(token("--failed")));
  for (let byte = 2; byte < 256; byte++) table[byte] = packed(heat((byte - 2) / 253));
  return table;
}
