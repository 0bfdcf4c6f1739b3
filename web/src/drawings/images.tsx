// Small grey images, drawn pixel by pixel; wrong ones have a frame and say so.
import { useEffect, useRef } from "preact/hooks";

interface Image {
  pixels: string;
  caption: string;
  wrong?: boolean;
}

export function Images({ width, height, images }: { width: number; height: number; images: Image[] }) {
  return (
    <ul class="images">
      {images.map((image, index) => (
        <li key={index} class={image.wrong ? "wrong" : ""}>
          <figure>
            <Picture width={width} height={height} image={image} />
            <figcaption>
              {image.caption}
              {image.wrong && <b> wrong</b>}
            </figcaption>
          </figure>
        </li>
      ))}
    </ul>
  );
}

function Picture({ width, height, image }: { width: number; height: number; image: Image }) {
  const ref = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const context = ref.current?.getContext("2d");
    if (!context || width * height > 1 << 20) return;
    const grey = atob(image.pixels);
    const data = context.createImageData(width, height);
    for (let index = 0; index < width * height; index++) {
      data.data.fill(grey.charCodeAt(index) || 0, index * 4, index * 4 + 3);
      data.data[index * 4 + 3] = 255;
    }
    context.putImageData(data, 0, 0);
  }, [image.pixels, width, height]);
  return <canvas ref={ref} width={width} height={height} role="img" aria-label={image.caption} />;
}
