// Tiles of the matrix: fetched when they are seen, painted once, kept while they fit.
import { loadBytes, type MatrixHead } from "./api";
import { heat, token } from "./colours";

interface Tile { bytes: Uint8Array; picture: HTMLCanvasElement; rows: number; columns: number }

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
    for (const tile of this.known.values()) this.paint(tile);
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
    const pixel = new ImageData(1, 1);
    new Uint32Array(pixel.data.buffer)[0] = this.colours[byte];
    tile.picture.getContext("2d")!.putImageData(pixel, column % width, row % height);
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
        bytes, picture: document.createElement("canvas"),
        rows: Math.min(height, size.rows - row * height), columns: Math.min(width, size.columns - column * width),
      };
      // A server may fill its tiles up to their full width.
      if (bytes.length === height * width) [tile.rows, tile.columns] = [height, width];
      this.paint(tile);
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

  private paint({ bytes, picture, rows, columns }: Tile): void {
    [picture.width, picture.height] = [columns, rows];
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < pixels.length; at++) pixels[at] = this.colours[bytes[at]];
    picture.getContext("2d")!.putImageData(image, 0, 0);
  }
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
