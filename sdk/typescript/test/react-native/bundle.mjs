/** Bundles an entry file with Metro, as a release build of React Native does: `node bundle.mjs ENTRY OUT PROFILE`. */

import { getDefaultConfig, mergeConfig } from "@react-native/metro-config";
import Metro from "metro";

const [entry, out, profile] = process.argv.slice(2);
const config = mergeConfig(getDefaultConfig(process.cwd()), {
  reporter: { update: (event) => event.type === "bundle_build_failed" && console.error(event) },
  transformer: { unstable_allowRequireContext: true },
  resolver: { blockList: [/\/expo-chat\//] },
  serializer: { getModulesRunBeforeMainModule: () => [] },
  maxWorkers: 2,
});
await Metro.runBuild(config, { entry, out, platform: "android", dev: false, minify: true, unstable_transformProfile: profile });
