/**
 * The globals of a React Native app: what the native side installs, then React Native's own JavaScript.
 *
 * Hermes 0.12 is older than the engine of React Native: `TextEncoder`, `atob` and `btoa` are added as they are there.
 */

/* global print */
const native = (...call) => print(`@${JSON.stringify(call).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`)}`);
const enqueueMicrotask = globalThis.setImmediate; // the queue of Hermes' promises
const callbacks = new Map();
const functions = {};
let next = 1;

function setTimer(callback, delay, values, repeat) {
  const id = next++;
  callbacks.set(id, () => {
    if (repeat) native("Timers", "set", id, delay);
    else callbacks.delete(id);
    callback(...values);
  });
  native("Timers", "set", id, Math.max(0, Number(delay) || 0));
  return id;
}

function clearTimer(id) {
  if (callbacks.delete(id)) native("Timers", "clear", id);
}

const promised = (module, method) => (...values) =>
  new Promise((resolve) => {
    const id = next++;
    callbacks.set(id, resolve);
    native(module, method, id, ...values);
  });

const moduleOf = (name, methods, more = {}) => Object.assign(Object.fromEntries(methods.map((method) => [method, (...values) => native(name, method, ...values)])), more);
const events = { addListener() {}, removeListeners() {} };
const modules = {
  Networking: moduleOf("Networking", ["sendRequest", "abortRequest"], events),
  WebSocketModule: moduleOf("WebSocketModule", ["connect", "send", "sendBinary", "close"], events),
  BlobModule: moduleOf("Blobs", ["createFromParts", "release"], { getConstants: () => ({}), addNetworkingHandler() {}, addWebSocketHandler() {}, removeWebSocketHandler() {} }),
  FileReaderModule: { readAsText: promised("Blobs", "readAsText"), readAsDataURL: promised("Blobs", "readAsDataURL") },
  NativeMicrotasksCxx: { queueMicrotask: (callback) => void enqueueMicrotask(callback) },
  PlatformConstants: { getConstants: () => ({ isTesting: false, Version: 35, reactNativeVersion: { major: 0, minor: 85, patch: 3 } }) },
};

globalThis.RN$Bridgeless = true;
globalThis.RN$useAlwaysAvailableJSErrorHandling = true;
globalThis.__turboModuleProxy = (name) => modules[name];
globalThis.nativeModuleProxy = {};
globalThis.nativeLoggingHook = (message) => native("Test", "log", message);
globalThis.setTimeout = (callback, delay, ...values) => setTimer(callback, delay, values, false);
globalThis.setInterval = (callback, delay, ...values) => setTimer(callback, delay, values, true);
globalThis.clearTimeout = globalThis.clearInterval = clearTimer;

const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
globalThis.atob = (text) => {
  let bits = 0;
  let size = 0;
  let output = "";
  for (const character of text.replace(/=+$/, "")) {
    bits = ((bits << 6) | BASE64.indexOf(character)) & 0xffffff;
    size += 6;
    if (size >= 8) output += String.fromCharCode((bits >> (size -= 8)) & 0xff);
  }
  return output;
};
globalThis.btoa = (text) => {
  let output = "";
  for (let at = 0; at < text.length; at += 3) {
    const bits = (text.charCodeAt(at) << 16) | ((text.charCodeAt(at + 1) || 0) << 8) | (text.charCodeAt(at + 2) || 0);
    const rest = text.length - at;
    output += BASE64[bits >> 18] + BASE64[(bits >> 12) & 63] + (rest > 1 ? BASE64[(bits >> 6) & 63] : "=") + (rest > 2 ? BASE64[bits & 63] : "=");
  }
  return output;
};
globalThis.TextEncoder = class {
  encode(text) {
    const bytes = unescape(encodeURIComponent(text));
    return Uint8Array.from({ length: bytes.length }, (_, at) => bytes.charCodeAt(at));
  }
};

/** The host calls this function for each event, each timer, and each test. */
globalThis.__host = ([kind, ...values]) => {
  if (kind === "emit") {
    globalThis.__rctDeviceEventEmitter.emit(...values);
  } else if (kind === "timer") {
    callbacks.get(values[0])?.();
  } else if (kind === "stream") {
    const [id, ...event] = values;
    callbacks.get(id)(event);
  } else if (kind === "resolve") {
    callbacks.get(values[0])(values[1]);
    callbacks.delete(values[0]);
  } else {
    const [id, name, ...rest] = values;
    Promise.resolve()
      .then(() => functions[name](...rest))
      .then(
        (value) => native("Test", "settled", id, null, value ?? null),
        (error) => native("Test", "settled", id, { message: String(error?.message ?? error), stack: String(error?.stack ?? "") }),
      );
  }
};

/** Let the host call a function. */
export function expose(name, implementation) {
  functions[name] = implementation;
}

/** The host's requests whose responses can be read while they arrive. */
export const streams = {
  open(request, onEvent) {
    const id = next++;
    callbacks.set(id, onEvent);
    native("Stream", "open", id, request);
    return id;
  },
  abort: (id) => native("Stream", "abort", id),
};

require("react-native/Libraries/Core/setUpGlobals");
require("react-native/src/private/setup/setUpDOM").default();
require("react-native/Libraries/Core/setUpPerformance");
require("react-native/Libraries/Core/polyfillPromise");
require("react-native/Libraries/Core/setUpTimers");
require("react-native/Libraries/Core/setUpXHR");
require("react-native/Libraries/Core/setUpNavigator");
require("react-native/Libraries/EventEmitter/RCTDeviceEventEmitter");
