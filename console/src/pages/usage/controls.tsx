/** The choices of time, measure, group and filters, and the download. */
import { queryString } from "../../api/client";
import { Field } from "../../components/field";
import { type Suggestion, TextFilter, useSuggestions } from "../../components/text-filter";
import { TimeRangeField } from "../../components/time-range";
import { addressWith, navigate, useAddress } from "../../router";
import { useIsAdmin } from "../../session";
import { GROUPS, MEASURES, USAGE_FILTERS, type UsageChoice } from "./query";

function set(name: string, value: string): void {
  navigate(addressWith({ [name]: value.trim() }), { replace: true });
}

export function UsageControls({ choice }: { choice: UsageChoice }) {
  const isAdmin = useIsAdmin();
  const suggestions: Partial<Record<string, Suggestion[]>> = useSuggestions();
  const { searchParams } = useAddress();
  const csvAddress = choice.parameters && `/v1/usage/series${queryString({ ...choice.parameters, format: "csv" })}`;
  return (
    <form class="filters card" aria-label="Usage" onSubmit={(event) => event.preventDefault()}>
      <TimeRangeField />
      <Choice name="measure" label="Show" value={choice.measure} options={MEASURES} defaultValue="cost" />
      <Choice name="by" label="Group by" value={choice.group} options={GROUPS} defaultValue="model" />
      {choice.group === "tag" && (
        <TextFilter
          name="tag_name" label="Tag name" hint="team" value={choice.tagName} suggestions={undefined}
          onChange={(value) => set("tag_name", value)}
        />
      )}
      {Object.entries(USAGE_FILTERS).filter(([name]) => isAdmin || name !== "key").map(
        ([name, label]) => (
          <TextFilter
            key={name} name={name} label={label} hint={name === "tag" ? "team=web" : ""} value={searchParams.get(name) ?? ""}
            suggestions={suggestions[name]} onChange={(value) => set(name, value)}
          />
        ),
      )}
      {csvAddress && <a class="button" href={csvAddress} download="usage.csv">Download CSV</a>}
    </form>
  );
}

function Choice(
  { name, label, value, options, defaultValue }: {
    name: string; label: string; value: string; options: Record<string, string>; defaultValue: string;
  },
) {
  return (
    <Field name={name} label={label}>
      {(attributes) => (
        <select
          {...attributes} value={value}
          onChange={(event) => set(name, event.currentTarget.value === defaultValue ? "" : event.currentTarget.value)}
        >
          {Object.entries(options).map(([key, text]) => <option key={key} value={key}>{text}</option>)}
        </select>
      )}
    </Field>
  );
}
