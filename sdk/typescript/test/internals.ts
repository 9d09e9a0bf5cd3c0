/** The parts of the SDK that the shared vectors test. Not part of the package. */

export { normalizeUrl, resolveGatewayUrl, withV1Suffix } from "../src/address.js";
export * from "../src/errors.js";
export { isRetryable, parseRetryAfter, retryDelay } from "../src/retry.js";
export { EventSplitter } from "../src/sse.js";
export { compareVersions, isPrerelease, newestVersion, parseReference, selectEntry, sortVersions } from "../src/reference.js";
export { checkSignatures } from "../src/signature.js";
export { Utf8Decoder } from "../src/text.js";
export { parseStage } from "../src/pipeline.js";
export { parseYaml } from "../src/yaml.js";
export { Sha256 } from "../src/sha256.js";
