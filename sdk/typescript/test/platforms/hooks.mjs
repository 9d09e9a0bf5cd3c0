/** Renders `useChat`, without a page. */

import { act, createElement } from "react";
import renderer from "react-test-renderer";
import { useChat } from "@svc/client/react";

/** Send a text, and return the messages at the end of the response. */
export async function chatWithHook(client, text) {
  globalThis.IS_REACT_ACT_ENVIRONMENT = true;
  let chat;
  const Component = () => {
    chat = useChat({ client });
    return null;
  };
  let root;
  await act(async () => (root = renderer.create(createElement(Component))));
  await act(() => chat.send(text));
  const { messages, error } = chat;
  await act(async () => root.unmount());
  if (error) throw error;
  return messages;
}
