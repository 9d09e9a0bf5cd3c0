/** Usage over time: the points of `GET /v1/usage/series` as columns of a chart. */
import type { UsagePoint } from "../../build/schema";

export const STEP_SECONDS = { minute: 60, hour: 3600, day: 86_400 } as const;
export type Interval = keyof typeof STEP_SECONDS;

/** Returns the starts of all intervals of a window, in Unix seconds. Days and hours are those of UTC. */
export function intervalStarts(since: string, until: string, interval: Interval): number[] {
  const step = STEP_SECONDS[interval];
  const start = Math.floor(Date.parse(since) / 1000 / step) * step;
  const end = Date.parse(until) / 1000;
  return Array.from({ length: Math.max(1, Math.ceil((end - start) / step)) }, (_, index) => start + index * step);
}

/** Returns the sum of `measure` over the points of each interval. */
export function sumByInterval(times: number[], points: UsagePoint[], measure: (point: UsagePoint) => number): number[] {
  const places = new Map(times.map((time, index) => [time, index]));
  const values = new Array<number>(times.length).fill(0);
  for (const point of points) {
    const place = places.get(Date.parse(point.time) / 1000);
    if (place !== undefined) values[place] = (values[place] ?? 0) + measure(point);
  }
  return values;
}
