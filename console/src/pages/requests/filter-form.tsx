/** The form of the filters. A change is applied at once, and a text when it is complete. */
import { Field } from "../../components/field";
import { type Suggestion, TextFilter } from "../../components/text-filter";
import { TimeRangeField } from "../../components/time-range";
import { addressWith, navigate } from "../../router";
import { useIsAdmin } from "../../session";
import { FILTER_NAMES, type FilterName, useFilters } from "./query";
import { STATUS_LABELS } from "./status";

const TEXT_FILTERS: { name: FilterName; label: string; hint: string }[] = [
  { name: "model", label: "Model", hint: "" },
  { name: "provider", label: "Provider", hint: "" },
  { name: "key", label: "Key", hint: "" },
  { name: "http_status", label: "HTTP status", hint: "429" },
  { name: "code", label: "Error code", hint: "provider_error" },
  { name: "tag", label: "Tag", hint: "team=web" },
  { name: "request_id", label: "Request id", hint: "req_…" },
];

export function FilterForm({ suggestions }: { suggestions: Partial<Record<FilterName, Suggestion[]>> }) {
  const filters = useFilters();
  const set = (name: FilterName, value: string): void => navigate(addressWith({ [name]: value.trim() }), { replace: true });
  const isAdmin = useIsAdmin();
  const shownFilters = TEXT_FILTERS.filter(({ name }) => isAdmin || name !== "key");
  const isFiltered = FILTER_NAMES.some((name) => filters[name]);
  return (
    <form class="filters card" role="search" aria-label="Filter requests" onSubmit={(event) => event.preventDefault()}>
      <TimeRangeField />
      <Field name="status" label="Status">
        {(attributes) => (
          <select {...attributes} value={filters.status} onChange={(event) => set("status", event.currentTarget.value)}>
            <option value="">Any</option>
            {Object.entries(STATUS_LABELS).map(([value, label]) => <option key={value} value={value}>{label}</option>)}
          </select>
        )}
      </Field>
      {shownFilters.map(({ name, label, hint }) => (
        <TextFilter
          key={name} name={name} label={label} hint={hint} value={filters[name]} suggestions={suggestions[name] ?? []}
          onChange={(value) => set(name, value)}
        />
      ))}
      <button
        type="button" class="clear" disabled={!isFiltered}
        onClick={() => navigate(addressWith(Object.fromEntries(FILTER_NAMES.map((name) => [name, ""]))), { replace: true })}
      >
        Clear filters
      </button>
      <p class="hint filter-hint">A filter finds the whole value: <code>gpt-4o</code> does not find <code>gpt-4o-mini</code>.</p>
    </form>
  );
}
