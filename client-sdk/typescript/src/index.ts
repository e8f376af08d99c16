/**
 * Client of `mcp-sidecar`, the daemon that holds every MCP connection of a host.
 *
 * What this package adds to the generated stubs, which are in `mcp-sidecar-client/proto`: it finds the daemon's socket and waits
 * for it, fills in namespace and deadline, decodes errors, keeps updates going over restarts, answers questions with your
 * functions, and gives tools the shapes that model APIs want.
 *
 * @module
 */

export {
  type CallEvent, duration, type Duration, structuredOf, textOf, toMcpContent, type ToolCallInit,
} from "./calls.js";
export { Client, type ConnectOptions, type Listing } from "./client.js";
export {
  ADDRESS_ENV, CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, SOCKET_ENV, socketCandidates, TOKEN_ENV, TOKEN_FILE_ENV,
} from "./connect.js";
export {
  type ConnectAttempt, ConnectError, ConnectionLostError, ContractError, errorFrom, type FieldViolation, SidecarError,
  type SidecarErrorFacts,
} from "./errors.js";
export { type BigIntegers, parseJson, stringifyJson } from "./json.js";
export {
  type AnthropicContent, type AnthropicTool, fromModelCall, type GeminiTool, inputSchema, type JsonSchema, listModelTools,
  type ModelApi, type ModelApis, type OpenAiChatTool, type OpenAiResponsesTool, resultText, runModelCall, toModelAnswer,
  toModelTools,
} from "./models.js";
export {
  type Answer, type QuestionContext, type QuestionHandlers, type QuestionOptions, QuestionSession,
} from "./questions.js";
export type { RequestOptions } from "./rpc.js";
export { openBrowser, SignInError, type SignInOptions } from "./sign-in.js";
export type { Update, UpdateEvent, UpdateFilter } from "./updates.js";
export { VERSION } from "./version.js";
export {
  AddOutcome, CallState, ConnectionState, ElicitationAction, ElicitationMode, ElicitationState, ModelNameStyle, SignInState,
  UpdateKind,
} from "./proto.js";
