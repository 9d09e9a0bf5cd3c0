/** How much of a limit is used, as text and as a bar. */

const HIGH_SHARE = 0.8;
/** The bar of a limit that is reached has the color of errors, which it gets only above `high`. */
const REACHED_SHARE = 0.999;

export function Meter(
  { label, value, limit, format }: { label: string; value: number; limit: number; format: (value: number) => string },
) {
  const text = `${format(value)} of ${format(limit)}`;
  return (
    <div class="meter">
      <div class="meter-text"><span>{label}</span><span>{text}</span></div>
      <meter
        min={0} max={limit} low={limit * HIGH_SHARE} high={limit * REACHED_SHARE} optimum={0} value={Math.min(value, limit)}
        aria-label={label} aria-valuetext={text}
      />
    </div>
  );
}
