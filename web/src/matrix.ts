// The canvas of the matrix: rows and columns at any zoom, drawn from tiles.
import { type Change, type MatrixHead } from "./api";
import { heatColour, token } from "./colours";
import { count, number } from "./format";
import { Tiles, visible } from "./tiles";

export interface At { row: number; column: number }
export interface Words { unit: string; units: string; down: string; across: string; scale: [number, number] | null }
export interface Listeners {
  hover: (at: At | null, x: number, y: number) => void;
  open: (at: At) => void;
  openRow: (row: number) => void;
  moved: (view: string) => void;
}

const right = 34; // room for the name of the last column
const slope = 0.83; // of the names of columns
const font = "12px system-ui, sans-serif";

export class Matrix {
  private pen: CanvasRenderingContext2D;
  private x = 0; // first column and row in sight, as fractions
  private y = 0;
  private wide = 1; // pixels of a cell
  private high = 1;
  private width = 0;
  private height = 0;
  private left = 200; // room for the names of rows, and above, of columns
  private top = 84;
  private due = 0;
  private watch: ResizeObserver;
  private tiles: Tiles;
  private scores: [number, number]; // the least score of a row, and how far the greatest is above it
  private rowOf = new Map<number, number>();
  private columnOf = new Map<number, number>();
  selected: At | null = null;
  frames = 0; // drawn so far, for benchmarks

  constructor(private canvas: HTMLCanvasElement, private head: MatrixHead, path: (level: number, row: number, column: number) => string,
    private words: Words, private listeners: Listeners, view: string) {
    this.pen = canvas.getContext("2d", { alpha: false })!;
    this.tiles = new Tiles(head, path, () => this.redraw());
    const known = head.scores.filter((score) => score !== null);
    const [least, greatest] = words.scale ?? [known.reduce((a, b) => Math.min(a, b), Infinity), known.reduce((a, b) => Math.max(a, b), -Infinity)];
    this.scores = [least, greatest - least || 1];
    head.trials.forEach((trial, row) => this.rowOf.set(trial, row));
    head.positions.forEach((position, column) => this.columnOf.set(position, column));
    this.pen.font = font;
    const longest = head.cases.slice(0, 2000).reduce((most, name) => (name.length > most.length ? name : most), "");
    this.top = Math.max(64, Math.min(150, 34 + this.pen.measureText(longest).width * slope));
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(canvas);
    this.resize();
    if (!this.restore(view)) this.fit();
    this.listen();
  }

  end(): void {
    this.watch.disconnect();
    this.tiles.end();
    cancelAnimationFrame(this.due);
    this.due = 0;
  }

  /** All columns, and as many rows as can be told apart. */
  fit(whole = false): void {
    const [width, height] = this.room();
    this.wide = Math.max(whole ? 0 : 0.25, Math.min(40, width / this.head.columns));
    this.high = Math.max(whole ? 0 : 1, Math.min(20, height / this.head.rows));
    this.x = this.y = 0;
    this.settle();
  }

  zoom(factor: number, x = this.left + this.room()[0] / 2, y = this.top + this.room()[1] / 2): void {
    const rows = x >= this.left ? y >= this.top || x < this.left : true;
    const columns = y >= this.top ? x >= this.left : true;
    const at = this.place(Math.max(x, this.left), Math.max(y, this.top));
    const [width, height] = this.room();
    const clamp = (size: number, least: number) => Math.max(Math.min(least, 26), Math.min(60, size * factor));
    if (columns) this.wide = clamp(this.wide, width / this.head.columns);
    if (rows) this.high = clamp(this.high, height / this.head.rows);
    if (columns) this.x = at.column - (Math.max(x, this.left) - this.left) / this.wide;
    if (rows) this.y = at.row - (Math.max(y, this.top) - this.top) / this.high;
    this.settle();
  }

  pan(dx: number, dy: number): void {
    this.x -= dx / this.wide;
    this.y -= dy / this.high;
    this.settle();
  }

  select(rows: number, columns: number): At {
    const old = this.selected ?? { row: Math.floor(this.y), column: Math.floor(this.x) };
    const row = Math.max(0, Math.min(this.head.rows - 1, old.row + rows));
    const column = Math.max(0, Math.min(this.head.columns - 1, old.column + columns));
    this.selected = { row, column };
    const [width, height] = this.room();
    this.x = Math.max(column + 1 - width / this.wide, Math.min(this.x, column));
    this.y = Math.max(row + 1 - height / this.high, Math.min(this.y, row));
    this.settle();
    return this.selected;
  }

  /** The value of a cell as text. */
  text({ row, column }: At): string {
    const byte = this.tiles.byte(row, column);
    if (byte === null) return "…";
    if (byte === 0) return "not evaluated";
    if (byte === 1) return "failed";
    return number(this.head.low + ((byte - 2) / 253) * (this.head.high - this.head.low));
  }

  /** Writes cells that have just been evaluated; says whether all of them are in sight of this matrix. */
  patch(cells: Change["cells"]): boolean {
    let all = true;
    for (const [trial, position, byte] of cells) {
      const [row, column] = [this.rowOf.get(trial), this.columnOf.get(position)];
      if (row === undefined || column === undefined) all = false;
      else this.tiles.put(row, column, byte);
    }
    this.redraw();
    return all;
  }

  recolour(): void {
    this.tiles.repaint();
    this.redraw();
  }

  redraw(): void {
    this.due ||= requestAnimationFrame(() => {
      this.due = 0;
      this.draw();
    });
  }

  private room(): [number, number] {
    return [Math.max(1, this.width - this.left - right), Math.max(1, this.height - this.top)];
  }

  private place(x: number, y: number): At {
    return { row: this.y + (y - this.top) / this.high, column: this.x + (x - this.left) / this.wide };
  }

  private cell(x: number, y: number): At | null {
    const at = this.place(x, y);
    const [row, column] = [Math.floor(at.row), Math.floor(at.column)];
    const inside = x >= this.left && y >= this.top && row >= 0 && column >= 0 && row < this.head.rows && column < this.head.columns;
    return inside ? { row, column } : null;
  }

  private settle(): void {
    const [width, height] = this.room();
    this.x = Math.max(0, Math.min(this.x, this.head.columns - width / this.wide));
    this.y = Math.max(0, Math.min(this.y, this.head.rows - height / this.high));
    this.listeners.moved([this.y, this.x, this.high, this.wide].map((value) => Number(value.toPrecision(4))).join(","));
    this.redraw();
  }

  private restore(view: string): boolean {
    const parts = view.split(",").map(Number);
    if (parts.length !== 4 || parts.some((part) => !Number.isFinite(part)) || parts[2] <= 0 || parts[3] <= 0) return false;
    [this.y, this.x, this.high, this.wide] = parts;
    this.settle();
    return true;
  }

  private resize(): void {
    const ratio = devicePixelRatio || 1;
    [this.width, this.height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    this.left = this.width < 640 ? 92 : this.head.briefs.length ? 220 : 120;
    [this.canvas.width, this.canvas.height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  private draw(): void {
    this.frames++;
    const { pen, width, height } = this;
    pen.fillStyle = token("--card");
    pen.fillRect(0, 0, width, height);
    if (!width) return;
    pen.save();
    pen.beginPath();
    // Coarse tiles reach beyond the last row and column.
    const [right, bottom] = [(this.head.columns - this.x) * this.wide, (this.head.rows - this.y) * this.high];
    pen.rect(this.left, this.top, Math.min(this.room()[0], right), Math.min(height - this.top, bottom));
    pen.clip();
    this.cells();
    pen.restore();
    this.down();
    this.across();
  }

  private cells(): void {
    const { pen } = this;
    const last = this.head.levels.length - 1;
    let level = 0;
    while (level < last && this.area(level).tiles > visible) level++;
    pen.imageSmoothingEnabled = false;
    if (last > level) this.level(last);
    this.level(level);
    if (this.high >= 7 && this.wide >= 7) this.lines();
    if (!this.selected) return;
    pen.strokeStyle = token("--ink");
    pen.lineWidth = 2;
    pen.strokeRect(this.left + (this.selected.column - this.x) * this.wide, this.top + (this.selected.row - this.y) * this.high, this.wide, this.high);
  }

  /** The tiles of a level that are in sight. */
  private area(level: number): { rows: [number, number]; columns: [number, number]; tiles: number } {
    const { factor, rows, columns } = this.head.levels[level];
    const [tall, wide] = this.head.tile;
    const [width, height] = this.room();
    const span = (start: number, size: number, tile: number, count: number): [number, number] => [
      Math.max(0, Math.floor(start / factor / tile)), Math.min(Math.ceil(count / tile) - 1, Math.floor((start + size) / factor / tile)),
    ];
    const down = span(this.y, height / this.high, tall, rows);
    const across = span(this.x, width / this.wide, wide, columns);
    return { rows: down, columns: across, tiles: (down[1] - down[0] + 1) * (across[1] - across[0] + 1) };
  }

  private level(level: number): void {
    const { factor } = this.head.levels[level];
    const [tall, wide] = this.head.tile;
    const { rows, columns } = this.area(level);
    // Cells smaller than a pixel are averaged first: fewer pixels to draw, and nothing flickers.
    const [down, across] = [blocks(this.high * factor, tall), blocks(this.wide * factor, wide)];
    for (let row = rows[0]; row <= rows[1]; row++)
      for (let column = columns[0]; column <= columns[1]; column++) {
        const tile = this.tiles.get(level, row, column);
        if (!tile) continue;
        const x = this.left + (column * wide * factor - this.x) * this.wide;
        const y = this.top + (row * tall * factor - this.y) * this.high;
        const picture = this.tiles.picture(tile, down, across);
        this.pen.drawImage(picture, x, y, picture.width * across * factor * this.wide, picture.height * down * factor * this.high);
      }
  }

  /** Thin gaps between cells that are large enough. */
  private lines(): void {
    const { pen } = this;
    pen.fillStyle = token("--card");
    for (let column = Math.ceil(this.x); column <= this.head.columns; column++) {
      const x = this.left + (column - this.x) * this.wide;
      if (x > this.width) break;
      pen.fillRect(Math.round(x) - 1, this.top, 1, this.height);
    }
    for (let row = Math.ceil(this.y); row <= this.head.rows; row++) {
      const y = this.top + (row - this.y) * this.high;
      if (y > this.height) break;
      pen.fillRect(this.left, Math.round(y) - 1, this.room()[0], 1);
    }
  }

  private label(text: string, x: number, y: number, most: number): void {
    const { pen } = this;
    let shown = text;
    if (pen.measureText(shown).width > most) {
      while (shown.length > 1 && pen.measureText(`${shown}…`).width > most) shown = shown.slice(0, -1);
      shown += "…";
    }
    pen.fillText(shown, x, y);
  }

  /** Names and scores of rows, at the left. */
  private down(): void {
    const { pen, head } = this;
    const names = this.high >= 14;
    const narrow = this.left < 120;
    pen.font = font;
    pen.textBaseline = "middle";
    const [least, size] = this.scores;
    const end = Math.min(head.rows, Math.ceil(this.y + this.room()[1] / this.high));
    const step = names ? 1 : nice(16 / this.high);
    const stride = Math.max(1, Math.floor(1 / this.high));
    const bar = narrow ? 24 : 48;
    for (let row = Math.floor(this.y / stride) * stride; row < end; row += stride) {
      const score = head.scores[row];
      const y = this.top + (row - this.y) * this.high;
      if (score === null || score === undefined || y < this.top - this.high) continue;
      pen.fillStyle = heatColour((score - least) / size);
      const cut = Math.round(Math.max(this.top, y));
      pen.fillRect(this.left - 6 - bar, cut, Math.max(1, ((score - least) / size) * bar), Math.max(1, Math.round(y + this.high * stride) - cut - (names ? 2 : 0)));
    }
    pen.save();
    pen.beginPath();
    pen.rect(0, this.top, this.left, this.height);
    pen.clip();
    // Without names, round numbers: the first, then every tenth, ...
    for (const row of ticks(this.y, end, step)) {
      const place = this.top + (row - this.y + (names ? 0.5 : 0)) * this.high + (names ? 0 : 6);
      if (place > this.height - 7 && row < head.rows - 1) continue; // no half labels
      const y = Math.min(this.height - 7, place);
      const width = this.left - bar - 16;
      pen.fillStyle = token(this.selected?.row === row ? "--accent" : "--ink");
      if (!names || narrow) this.label(names ? `${head.trials[row]}` : count(row + 1), 4, y, width);
      else this.label(`${head.trials[row]}  ${head.briefs[row] ?? ""}`, 4, y, width);
    }
    pen.restore();
    pen.fillStyle = token("--soft");
    pen.textBaseline = "alphabetic";
    const title = pen.measureText(`${this.words.down} ↓`).width < this.left - 8 ? this.words.down : this.words.units;
    this.label(`${title} ↓`, 4, this.top - 8, this.left - 8);
  }

  /** Names of columns, at the top. */
  private across(): void {
    const { pen, head } = this;
    const names = this.wide >= 14;
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.width, this.top);
    pen.clip();
    const step = names ? 1 : nice(48 / this.wide);
    const end = Math.min(head.columns, Math.ceil(this.x + this.room()[0] / this.wide));
    for (const column of ticks(this.x, end, step)) {
      const x = this.left + (column - this.x + (names ? 0.5 : 0)) * this.wide;
      pen.fillStyle = token(this.selected?.column === column ? "--accent" : "--ink");
      if (names) {
        pen.save();
        pen.translate(x + 4, this.top - 6);
        pen.rotate(-Math.PI / 3.2);
        this.label(head.cases[column] ?? "", 0, 0, (this.top - 26) / slope);
        pen.restore();
      } else {
        pen.fillText(count(column + 1), x + 2, this.top - 8);
        pen.fillRect(x, this.top - 6, 1, 6);
      }
    }
    pen.restore();
    pen.fillStyle = token("--soft");
    pen.fillText(`${this.words.across} →`, 4, 16);
  }

  private listen(): void {
    const { canvas } = this;
    const fingers = new Map<number, PointerEvent>();
    let moved = 0;
    const at = (event: PointerEvent | WheelEvent) => [event.offsetX, event.offsetY] as const;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey) this.pan(-event.deltaY - event.deltaX, 0);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(-event.deltaX, 0);
      else this.zoom(Math.exp(-event.deltaY * 0.0018), ...at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, event);
      moved = 0;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return this.listeners.hover(this.cell(...at(event)), ...at(event));
      const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
      if (other) {
        const gap = (a: PointerEvent, b: PointerEvent) => Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY) || 1;
        this.zoom(gap(event, other) / gap(before, other), ...at(event));
      } else this.pan(event.clientX - before.clientX, event.clientY - before.clientY);
      moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
      fingers.set(event.pointerId, event);
      if (moved > 4) this.listeners.hover(null, 0, 0);
    });
    const up = (event: PointerEvent) => {
      if (!fingers.delete(event.pointerId) || moved > 4 || event.type !== "pointerup") return;
      const [x, y] = at(event);
      const cell = this.cell(x, y);
      const row = Math.floor(this.place(x, y).row);
      if (cell) this.listeners.open(cell);
      else if (x < this.left && y >= this.top && row < this.head.rows) this.listeners.openRow(row);
    };
    for (const name of ["pointerup", "pointercancel"] as const) canvas.addEventListener(name, up);
    canvas.addEventListener("pointerleave", () => this.listeners.hover(null, 0, 0));
  }
}

/** How many cells, a power of two, share a pixel. */
const blocks = (size: number, most: number) => Math.min(most, 2 ** Math.max(0, Math.floor(Math.log2(1 / size))));

/** Places to label between two rows or columns: those whose number, from 1, is round. */
function ticks(start: number, end: number, step: number): number[] {
  const places = start < 1 && step > 2 ? [0] : [];
  for (let at = Math.max(step, Math.ceil((start + 1) / step) * step); at <= end; at += step) places.push(at - 1);
  return step === 1 && start > 0 ? [Math.floor(start), ...places] : places;
}

/** The next round number: 1, 2, 5, 10, 20, ... */
function nice(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= least) ?? 1;
}
