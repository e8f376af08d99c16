/** The messages and the generated clients of the contract; their comments are the reference. */

// Every generated file has these; what is named here takes precedence over the stars below.
export { type DeepPartial, type MessageFns, protobufFileName, protobufPackage } from "./generated/mcpsidecar/v1/content.js";

export * from "./generated/mcpsidecar/v1/auth.js";
export * from "./generated/mcpsidecar/v1/call.js";
export * from "./generated/mcpsidecar/v1/content.js";
export * from "./generated/mcpsidecar/v1/elicitation.js";
export * from "./generated/mcpsidecar/v1/prompt.js";
export * from "./generated/mcpsidecar/v1/resource.js";
export * from "./generated/mcpsidecar/v1/sampling.js";
export * from "./generated/mcpsidecar/v1/server.js";
export * from "./generated/mcpsidecar/v1/tool.js";
export * from "./generated/mcpsidecar/v1/update.js";
