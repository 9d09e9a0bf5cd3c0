/** Links from a key to its usage and its requests. */
import { pagePath } from "../../router";

/** `isNewTab` keeps the page, which has the only copy of a secret. */
export function KeyUseLinks({ id, name, isNewTab = false }: { id: string; name: string; isNewTab?: boolean }) {
  const query = `?key=${encodeURIComponent(id)}`;
  const target = isNewTab ? { target: "_blank" } : {};
  return (
    <>
      <a href={pagePath("Usage") + query} {...target}>Usage of {name}</a>,{" "}
      <a href={pagePath("Requests") + query} {...target}>Requests of {name}</a>
    </>
  );
}
