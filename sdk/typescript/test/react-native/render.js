/** Renders hooks. The release build of React has no `act`, so that the tests wait for what is rendered. */

import { createElement } from "react";
import renderer from "react-test-renderer";
import { useChat } from "@svc/client/react";
import { until } from "./assert.js";

/** Render a hook. `hook.current` is what it returned last. */
export async function render(use, options) {
  const hook = {};
  const Component = () => {
    hook.current = use(options);
    return null;
  };
  hook.root = renderer.create(createElement(Component));
  await until(() => hook.current, "the first rendering");
  return hook;
}

/** Send a text with `useChat`, and return the messages at the end of the response. */
export async function chatWithHook(one, text) {
  const hook = await render(useChat, { client: one });
  await hook.current.send(text);
  await until(() => !hook.current.isStreaming, "the end of the response");
  const { messages, error } = hook.current;
  hook.root.unmount();
  if (error) throw error;
  return messages;
}
