/** Chats alone: the small entry point `@svc/client/chat`. */

export { init, setApiKey, setGatewayUrl, type ApiKey, type InitOptions } from "./config.js";
export {
  ChatClient,
  ChatClient as Client,
  ChatResult,
  ChatStream,
  image,
  type ChatChunk,
  type ChatOptions,
  type ChatParameters,
  type ChatUsage,
  type ClientOptions,
  type ContentPart,
  type Message,
  type Messages,
  type ModelInfo,
  type WebSocketClass,
} from "./chat-client.js";
export { ChatToolCall, tool, type AssistantMessage, type CallOf, type CustomTool, type Tool, type ToolCall, type ToolCallDelta, type ToolDefinition } from "./tools.js";
export type { FromSchema, JsonSchema } from "./schema.js";
export type { RequestOptions } from "./http.js";
export * from "./errors.js";
