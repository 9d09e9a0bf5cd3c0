/** Stacked bars over time. uPlot is loaded with the first chart. The page shows the same numbers as a table. */
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import "../styles/chart.css";

export interface ChartSeries {
  label: string;
  /** One value for each time. */
  values: number[];
  /** The number of the color, from 1 to 8, or `bad` or `other`. */
  color: number | "bad" | "other";
}

interface ChartProps {
  /** The starts of the intervals, in Unix seconds. */
  times: number[];
  stepSeconds: number;
  series: ChartSeries[];
  format: (value: number) => string;
  /** Formats the round values of the axis, if `format` would round them further. */
  formatTick?: (value: number) => string;
  /** The text alternative of the chart. */
  summary: string;
}

const HEIGHT = 220;

export function Chart({ times, stepSeconds, series, format, formatTick = format, summary }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const legend = useRef<HTMLUListElement>(null);
  const [hovered, setHovered] = useState<number | null>(null);
  const theme = useThemeChanges();
  const text = JSON.stringify([times, stepSeconds, series]);

  useEffect(() => {
    let plot: uPlot | null = null;
    let isCurrent = true;
    const element = box.current;
    if (!element || !legend.current) return undefined;
    const colors = [...legend.current.querySelectorAll(".swatch")].map((swatch) => getComputedStyle(swatch).backgroundColor);
    void loadPlot().then((Plot) => {
      if (!isCurrent) return;
      plot = draw(Plot, element, colors, { times, stepSeconds, series, format, formatTick, summary }, setHovered);
    });
    const observer = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      isCurrent = false;
      observer.disconnect();
      plot?.destroy();
    };
  }, [text, theme]);

  const time = hovered === null ? undefined : times[hovered];
  return (
    <figure class="chart">
      <div ref={box} class="plot" role="img" aria-label={summary} />
      <ul ref={legend} class="legend">
        {series.map(({ label, color, values }) => (
          <li key={label}>
            <span class={`swatch series-${color}`} />
            <span class="wrap">{label}</span>
            {hovered !== null && <strong>{format(values[hovered] ?? 0)}</strong>}
          </li>
        ))}
      </ul>
      <p class="hint chart-time" aria-hidden="true">{time === undefined ? " " : new Date(time * 1000).toLocaleString()}</p>
    </figure>
  );
}

async function loadPlot(): Promise<typeof uPlot> {
  const [module] = await Promise.all([import("uplot"), import("uplot/dist/uPlot.min.css")]);
  return module.default;
}

function draw(
  Plot: typeof uPlot, element: HTMLElement, colors: string[], { times, stepSeconds, series, format, formatTick = format }: ChartProps,
  onHover: (index: number | null) => void,
): uPlot {
  const muted = getComputedStyle(element).color;
  const grid = getComputedStyle(element).borderTopColor;
  const bars = Plot.paths.bars?.({ size: [0.8, 80], align: 1 });
  // The highest bars are drawn first, and lower ones over them.
  const stacked = stack(series.map(({ values }) => values)).reverse();
  const shownColors = colors.slice(0, series.length).reverse();
  const axis: uPlot.Axis = { stroke: muted, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
  const options: uPlot.Options = {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: {
      x: { time: true, range: () => [times[0] ?? 0, (times.at(-1) ?? 1) + stepSeconds] },
      y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false } },
      { ...axis, size: axisWidth, values: (_plot, ticks) => ticks.map((tick) => formatTick(tick)) },
    ],
    series: [
      {},
      ...shownColors.map((color): uPlot.Series => ({ fill: color, stroke: color, width: 0, ...(bars && { paths: bars }), points: { show: false } })),
    ],
    hooks: { setCursor: [(plot) => onHover(plot.cursor.idx ?? null)] },
  };
  return new Plot(options, [times, ...stacked], element);
}

const CHARACTER_WIDTH = 7.5;

function axisWidth(_plot: uPlot, labels: string[] | null): number {
  return Math.max(3, ...(labels ?? []).map((label) => label.length)) * CHARACTER_WIDTH + 16;
}

/** Returns for each series the sums of it and those before it. */
function stack(rows: number[][]): number[][] {
  const sums = new Array<number>(rows[0]?.length ?? 0).fill(0);
  return rows.map((values) => values.map((value, index) => (sums[index] = (sums[index] ?? 0) + value)));
}

/** Renders again when the theme changes: a canvas does not follow style sheets. */
function useThemeChanges(): number {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const change = (): void => setCount((previous) => previous + 1);
    const preferences = ["(prefers-color-scheme: dark)", "(forced-colors: active)"].map((query) => window.matchMedia(query));
    preferences.forEach((preference) => preference.addEventListener("change", change));
    const observer = new MutationObserver(change);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      preferences.forEach((preference) => preference.removeEventListener("change", change));
      observer.disconnect();
    };
  }, []);
  return count;
}
