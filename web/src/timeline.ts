// The canvas of the Work page: which evaluation ran in which slot, and when.
import type { Span, WorkPage } from "./api";
import { token } from "./colours";
import { duration } from "./format";

const left = 44;
const bottom = 40;
const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400,
  43200, 86400, 172800, 432000, 864000];

export const heightOf = (slots: number) => Math.max(72, Math.min(440, slots * 16)) + bottom;

export class Timeline {
  private pen: CanvasRenderingContext2D;
  private from = 0;
  private to = 1;
  private first = 0;
  private last = 1;
  private due = 0;
  private watch: ResizeObserver;

  constructor(private canvas: HTMLCanvasElement, private slots: WorkPage["slots"],
    private hover: (span: Span | null, x: number, y: number) => void, private open: (span: Span) => void) {
    this.pen = canvas.getContext("2d", { alpha: false })!;
    this.first = Math.min(...slots.spans.map((span) => span.start));
    this.last = Math.max(...slots.spans.map((span) => span.end), this.first + 1e-3);
    [this.from, this.to] = [this.first, this.last];
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(canvas);
    this.listen();
  }

  end(): void {
    this.watch.disconnect();
    cancelAnimationFrame(this.due);
  }

  redraw(): void {
    this.due ||= requestAnimationFrame(() => ((this.due = 0), this.draw()));
  }

  zoom(factor: number, x = this.canvas.clientWidth / 2): void {
    const middle = this.time(x);
    const size = Math.max(1e-3, Math.min(this.last - this.first, (this.to - this.from) / factor));
    const share = (middle - this.from) / (this.to - this.from);
    this.move(middle - size * share, size);
  }

  private move(from: number, size: number): void {
    this.from = Math.max(this.first, Math.min(from, this.last - size));
    this.to = this.from + size;
    this.redraw();
  }

  private time(x: number): number {
    return this.from + ((x - left) / (this.canvas.clientWidth - left)) * (this.to - this.from);
  }

  private draw(): void {
    const { pen, canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = token("--card");
    pen.fillRect(0, 0, width, height);
    const row = (height - bottom) / this.slots.count;
    const scale = (width - left) / (this.to - this.from);
    this.axes(width, height, row, scale);
    const colours = [token("--accent"), token("--line-4"), token("--failed")];
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width - left, height - bottom);
    pen.clip();
    pen.globalAlpha = 0.85;
    for (const span of this.slots.spans) {
      if (span.end < this.from || span.start > this.to) continue;
      pen.fillStyle = colours[span.failed ? 2 : span.tries > 1 ? 1 : 0];
      const size = Math.max(1, (span.end - span.start) * scale - 1);
      pen.fillRect(left + (span.start - this.from) * scale, span.slot * row + (row > 4 ? 1 : 0), size, Math.max(1, row - (row > 4 ? 2 : 0)));
    }
    pen.restore();
  }

  private axes(width: number, height: number, row: number, scale: number): void {
    const { pen } = this;
    pen.font = "12px system-ui, sans-serif";
    const step = steps.find((size) => size * scale >= 72) ?? steps[steps.length - 1];
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = left + (at - this.from) * scale;
      pen.fillStyle = token("--grid");
      pen.fillRect(x, 0, 1, height - bottom + 4);
      pen.fillStyle = token("--soft");
      pen.textAlign = x > width - 24 ? "right" : "center";
      pen.fillText(duration(Number(at.toPrecision(8))), x, height - bottom + 18);
    }
    pen.textAlign = "center";
    pen.fillText("time since the start", left + (width - left) / 2, height - 5);
    pen.textAlign = "right";
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((count) => count * row >= 14) ?? 1000;
    for (let slot = every === 1 ? 0 : every - 1; slot < this.slots.count; slot += every) pen.fillText(String(slot + 1), left - 6, (slot + 0.5) * row + 4);
    pen.textAlign = "center";
    pen.save();
    pen.translate(11, (height - bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("slot", 0, 0);
    pen.restore();
    pen.textAlign = "left";
  }

  private at(event: MouseEvent): Span | null {
    const slot = Math.floor(event.offsetY / ((this.canvas.clientHeight - bottom) / this.slots.count));
    const time = this.time(event.offsetX);
    const near = ((this.to - this.from) / this.canvas.clientWidth) * 2;
    return this.slots.spans.find((span) => span.slot === slot && span.start - near <= time && span.end + near >= time) ?? null;
  }

  private listen(): void {
    let before: number | null = null;
    let moved = 0;
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const size = this.to - this.from;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
        this.move(this.from + ((event.deltaX || event.deltaY) / canvas.clientWidth) * size, size);
      else this.zoom(Math.exp(-event.deltaY * 0.0018), event.offsetX);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      before = event.clientX;
      moved = 0;
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (before === null) return this.hover(this.at(event), event.offsetX, event.offsetY);
      const size = this.to - this.from;
      this.move(this.from - ((event.clientX - before) / (canvas.clientWidth - left)) * size, size);
      moved += Math.abs(event.clientX - before);
      before = event.clientX;
    });
    canvas.addEventListener("pointerup", (event) => {
      before = null;
      const span = this.at(event);
      if (span && moved < 4) this.open(span);
    });
    canvas.addEventListener("pointercancel", () => (before = null));
    canvas.addEventListener("pointerleave", () => this.hover(null, 0, 0));
  }
}
