/** The API's address of a bundle. */

/** `key` is `<model_id>/<version>/<platform>`. */
export function bundlePathOfKey(key: string): string {
  return `/v1/admin/bundles/${key.split("/").map(encodeURIComponent).join("/")}`;
}

export function bundlePath(bundle: { model_id: string; version: string; platform: string }): string {
  const parts = [bundle.model_id, bundle.version, bundle.platform].map(encodeURIComponent);
  return `/v1/admin/bundles/${parts.join("/")}`;
}
