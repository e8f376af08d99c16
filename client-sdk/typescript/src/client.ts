/** The client: one method per RPC, with namespace and deadline filled in. */

import type { ChannelCredentials, Client as Channel, ClientOptions, Interceptor } from "@grpc/grpc-js";
import { credentials } from "@grpc/grpc-js";

import { type CallEvent, duration, toolCall, type ToolCallInit } from "./calls.js";
import {
  addressOf, bearing, findAddress, findSocket, openChannel, openTcpChannel, socketCandidates,
} from "./connect.js";
import { ConnectionLostError, ContractError } from "./errors.js";
import { toJsonText } from "./json.js";
import * as pb from "./proto.js";
import { QuestionSession, type QuestionHandlers, type QuestionOptions } from "./questions.js";
import { type Method, type RequestOptions, serverStream, unary } from "./rpc.js";
import { signIn, type SignInOptions } from "./sign-in.js";
import { followUpdates, type Update, type UpdateFilter } from "./updates.js";
import { jittered, pause } from "./wait.js";

/** Settings of {@link Client.connect}. */
export interface ConnectOptions {
  /** The daemon's socket. Default: found, see {@link socketCandidates}. */
  socket?: string;
  /**
   * The daemon's address, such as `127.0.0.1:7443`, where its socket cannot be reached; it needs a token, and wins over a socket.
   * Default: `$MCP_SIDECAR_ADDRESS`, unless a socket is given here or by `$MCP_SIDECAR_SOCKET`.
   */
  address?: string;
  /** The token for the address. Default: that in `tokenFile`, else `$MCP_SIDECAR_TOKEN`, else that in `$MCP_SIDECAR_TOKEN_FILE`. */
  token?: string;
  /** A file with the token. */
  tokenFile?: string;
  /** The namespace of every request that names none. Default: the daemon's `default`. */
  namespace?: string;
  /** How long to go on trying, in milliseconds, with a back-off of at most half a second. Default: 5000. 0: once. */
  connectTimeoutMs?: number;
  /** The deadline of every request, updates excepted, in milliseconds. Default: none, only the daemon's timeouts apply. */
  deadlineMs?: number;
  /** Ends the attempt. */
  signal?: AbortSignal;
}

/** Entries of all matching servers, and the servers whose entries are missing or may be out of date. */
export interface Listing<T> {
  /** The entries, in order of server id and then in the server's own order. */
  items: T[];
  /** Servers whose entries are missing or incomplete. Empty: this is everything. */
  issues: pb.ListingIssue[];
}

interface Generated<T> {
  new (address: string, credentials: ChannelCredentials, options?: Partial<ClientOptions>): T;
}

/**
 * A connection to the daemon. Later losses of it are repaired by the next request. Requests fail with `SidecarError`, or its
 * subclass `ConnectionLostError` if the daemon goes away; the namespace and the deadline are filled in.
 */
export class Client implements AsyncDisposable, Disposable {
  /** The namespace of requests that name none; empty: the daemon's `default`. */
  readonly namespace: string;
  readonly #channel: Channel;
  readonly #deadlineMs: number | undefined;
  readonly #bearer: Interceptor | undefined;

  private constructor(channel: Channel, namespace: string, deadlineMs: number | undefined, bearer: Interceptor | undefined) {
    this.#channel = channel;
    this.#bearer = bearer;
    this.namespace = namespace;
    this.#deadlineMs = deadlineMs;
  }

  /**
   * Connects to the daemon of this host. Throws `ConnectError`, which names every path that was tried, and `TypeError` for what is
   * no address or no token.
   */
  static async connect(options: ConnectOptions = {}): Promise<Client> {
    const address = options.address ?? (options.socket === undefined ? addressOf() : undefined);
    if (address !== undefined) {
      const bearer = bearing(options.token, options.tokenFile);
      await findAddress(address, options.connectTimeoutMs ?? 5000, options.signal);
      return new Client(openTcpChannel(address, bearer), options.namespace ?? "", options.deadlineMs, bearer);
    }
    const paths = options.socket === undefined ? socketCandidates() : [options.socket];
    const path = await findSocket(paths, options.connectTimeoutMs ?? 5000, options.signal);
    return new Client(openChannel(path), options.namespace ?? "", options.deadlineMs, undefined);
  }

  /** The same connection with another namespace. */
  withNamespace(namespace: string): Client {
    return new Client(this.#channel, namespace, this.#deadlineMs, this.#bearer);
  }

  /** The same connection with another deadline for each request, or none. */
  withDeadline(deadlineMs: number | undefined): Client {
    return new Client(this.#channel, this.namespace, deadlineMs, this.#bearer);
  }

  /** Ends the connection, of every client that shares it; what is under way fails. */
  close(): void {
    this.#channel.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.close();
    return Promise.resolve();
  }

  /** A generated client on this connection, for what has no method here: `client.generated(pb.ToolServiceClient)`. */
  generated<T>(service: Generated<T>): T {
    const channel = this.#channel.getChannel() as ClientOptions["channelOverride"];
    return new service("unix:", credentials.createInsecure(), { channelOverride: channel, ...(this.#bearer && { interceptors: [this.#bearer] }) });
  }

  #unary<Q, A>(method: Method<Q, A>, request: Q, options: RequestOptions): Promise<A> {
    return unary(this.#channel, method, request, this.#options(options));
  }

  #options(options: RequestOptions): RequestOptions {
    return { signal: options.signal, deadlineMs: options.deadlineMs ?? this.#deadlineMs };
  }

  #fill<T extends { namespace: string }>(request: T): T {
    request.namespace ||= this.namespace;
    return request;
  }

  // Servers.

  /**
   * Registers a server, connects to it and reports the state it has reached. Idempotent. A server that cannot be reached is
   * registered all the same: look at the state in the answer.
   */
  addServer(request: pb.DeepPartial<pb.AddServerRequest>, options: RequestOptions = {}): Promise<pb.AddServerResponse> {
    const message = this.#fill(pb.AddServerRequest.fromPartial(request));
    return this.#unary(pb.ServerServiceService.addServer, message, options);
  }

  /** One server. */
  async getServer(serverId: string, options: RequestOptions = {}): Promise<pb.Server> {
    const message = pb.GetServerRequest.fromPartial({ namespace: this.namespace, serverId });
    return required((await this.#unary(pb.ServerServiceService.getServer, message, options)).server);
  }

  /** All servers of the namespace, in order of their ids. */
  async listServers(options: RequestOptions = {}): Promise<pb.Server[]> {
    const pages = await allPages(async (pageToken) => {
      const message = pb.ListServersRequest.fromPartial({ namespace: this.namespace, pageToken });
      const page = await this.#unary(pb.ServerServiceService.listServers, message, options);
      return { items: page.servers, issues: [], next: page.nextPageToken };
    });
    return pages.items;
  }

  /** Changes the settings that the update mask names, for example `["name", "http.headers"]`. */
  async updateServer(
    request: pb.DeepPartial<pb.UpdateServerRequest>,
    options: RequestOptions = {},
  ): Promise<pb.Server> {
    const message = this.#fill(pb.UpdateServerRequest.fromPartial(request));
    return required((await this.#unary(pb.ServerServiceService.updateServer, message, options)).server);
  }

  /** Removes a server with its connection, its process and its running calls. */
  async removeServer(serverId: string, options: RequestOptions = {}): Promise<void> {
    const message = pb.RemoveServerRequest.fromPartial({ namespace: this.namespace, serverId });
    await this.#unary(pb.ServerServiceService.removeServer, message, options);
  }

  /** Connects a disconnected server, or retries a failed one at once, and waits for it to settle. */
  async connectServer(serverId: string, waitMs?: number, options: RequestOptions = {}): Promise<pb.Server> {
    const waitTimeout = waitMs === undefined ? undefined : duration(waitMs);
    const message = pb.ConnectServerRequest.fromPartial({ namespace: this.namespace, serverId, waitTimeout });
    return required((await this.#unary(pb.ServerServiceService.connectServer, message, options)).server);
  }

  /** Ends the connection of a server, or with `undefined` of all servers, and keeps the registrations. */
  async disconnectServer(serverId: string | undefined, options: RequestOptions = {}): Promise<pb.Server[]> {
    const message = pb.DisconnectServerRequest.fromPartial({
      namespace: this.namespace,
      target: serverId === undefined ? { $case: "allServers", value: true } : { $case: "serverId", value: serverId },
    });
    return (await this.#unary(pb.ServerServiceService.disconnectServer, message, options)).servers;
  }

  /** Reads the lists of a connected server again and waits for them. */
  async refreshServer(serverId: string, waitMs?: number, options: RequestOptions = {}): Promise<pb.Server> {
    const waitTimeout = waitMs === undefined ? undefined : duration(waitMs);
    const message = pb.RefreshServerRequest.fromPartial({ namespace: this.namespace, serverId, waitTimeout });
    return required((await this.#unary(pb.ServerServiceService.refreshServer, message, options)).server);
  }

  /** Waits until the named servers (none named: all) have settled: ready, waiting for a sign-in, failed or disconnected. */
  waitForServers(
    serverIds: string[] = [],
    waitMs?: number,
    options: RequestOptions = {},
  ): Promise<pb.WaitForServersResponse> {
    const timeout = waitMs === undefined ? undefined : duration(waitMs);
    const message = pb.WaitForServersRequest.fromPartial({ namespace: this.namespace, serverIds, timeout });
    return this.#unary(pb.ServerServiceService.waitForServers, message, options);
  }

  /** The last lines that the processes of a stdio server wrote to their standard error. */
  async getServerLog(serverId: string, options: RequestOptions = {}): Promise<pb.ServerLogLine[]> {
    const message = pb.GetServerLogRequest.fromPartial({ namespace: this.namespace, serverId });
    return (await this.#unary(pb.ServerServiceService.getServerLog, message, options)).lines;
  }

  // Tools and calls.

  /** All tools of all servers of the namespace that match. */
  listTools(filter: pb.DeepPartial<pb.ListToolsRequest> = {}, options: RequestOptions = {}): Promise<Listing<pb.Tool>> {
    const message = this.#fill(pb.ListToolsRequest.fromPartial(filter));
    return allPages(async (pageToken) => {
      message.pageToken = pageToken;
      const page = await this.#unary(pb.ToolServiceService.listTools, message, options);
      return { items: page.tools, issues: page.issues, next: page.nextPageToken };
    });
  }

  /**
   * Calls a tool and waits for its result, also through questions that the server asks. A tool that reports an error is an
   * answer with `isError`; `UPSTREAM_ERROR` is a JSON-RPC error of the server, and `OUTCOME_UNKNOWN` means that the call may
   * have been carried out. Aborting the signal cancels the call at the server.
   */
  async callTool(call: ToolCallInit, options: RequestOptions = {}): Promise<pb.ToolResult> {
    const answer = await this.#call({ ...call, detach: false }, options);
    return required(answer.result);
  }

  #call(call: ToolCallInit, options: RequestOptions): Promise<pb.CallToolResponse> {
    return this.#unary(pb.ToolServiceService.callTool, { call: toolCall(call, this.namespace) }, options);
  }

  /** Makes a call that goes on by itself, and returns its id; see {@link Client.waitCall}. */
  async detachTool(call: ToolCallInit, options: RequestOptions = {}): Promise<string> {
    return (await this.#call({ ...call, detach: true }, options)).callId;
  }

  /**
   * Calls a tool and follows it: progress, log messages, questions, and exactly one result, last. Leaving the loop cancels the
   * call at the server, unless it is detached.
   */
  async *callToolStream(call: ToolCallInit, options: RequestOptions = {}): AsyncGenerator<CallEvent, void, undefined> {
    const request = { call: toolCall(call, this.namespace) };
    const method = pb.ToolServiceService.callToolStream;
    for await (const { event } of serverStream(this.#channel, method, request, this.#options(options))) {
      if (event === undefined) {
        continue; // An event of a newer contract.
      }
      yield event;
      if (event.$case === "result") {
        return;
      }
    }
    throw new ContractError("the call's stream ended without a result");
  }

  /** One call, with what came of it if it has ended. */
  async getCall(callId: string, options: RequestOptions = {}): Promise<pb.Call> {
    const message = pb.GetCallRequest.fromPartial({ namespace: this.namespace, callId });
    return required((await this.#unary(pb.CallServiceService.getCall, message, options)).call);
  }

  /** Waits for the end of a call, over restarts of the daemon too. Ending the wait does nothing to the call. */
  async waitCall(callId: string, options: RequestOptions = {}): Promise<pb.Call> {
    const message = pb.WaitCallRequest.fromPartial({ namespace: this.namespace, callId });
    const { signal, deadlineMs } = this.#options(options);
    const end = deadlineMs === undefined ? Infinity : performance.now() + deadlineMs;
    let failures = 0;
    for (;;) {
      const left = end === Infinity ? undefined : Math.max(end - performance.now(), 1);
      try {
        const method = pb.CallServiceService.waitCall;
        const { call } = await unary(this.#channel, method, message, { signal, deadlineMs: left });
        if (required(call).endTime !== undefined) {
          return required(call);
        }
        failures = 0;
      } catch (error) {
        // Waiting changes nothing, so it can be done again.
        const bound = Math.min(100 * 2 ** failures, 5000);
        if (!(error instanceof ConnectionLostError) && (error as { reason?: string }).reason !== "DRAINING") {
          throw error;
        }
        if (failures >= 8 || performance.now() + bound > end) {
          throw error;
        }
        failures += 1;
        await pause(jittered(bound), signal);
      }
    }
  }

  /** Cancels a call. */
  async cancelCall(callId: string, options: RequestOptions = {}): Promise<void> {
    const message = pb.CancelCallRequest.fromPartial({ namespace: this.namespace, callId });
    await this.#unary(pb.CallServiceService.cancelCall, message, options);
  }

  /** The calls of the namespace, oldest first; without `states` those that have not ended. */
  async listCalls(
    filter: pb.DeepPartial<pb.ListCallsRequest> = {},
    options: RequestOptions = {},
  ): Promise<pb.Call[]> {
    const message = this.#fill(pb.ListCallsRequest.fromPartial(filter));
    const pages = await allPages(async (pageToken) => {
      message.pageToken = pageToken;
      const page = await this.#unary(pb.CallServiceService.listCalls, message, options);
      return { items: page.calls, issues: [], next: page.nextPageToken };
    });
    return pages.items;
  }

  // Resources and prompts.

  /** All resources of the named servers (none named: all). */
  listResources(serverIds: string[] = [], options: RequestOptions = {}): Promise<Listing<pb.Resource>> {
    return allPages(async (pageToken) => {
      const message = pb.ListResourcesRequest.fromPartial({ namespace: this.namespace, serverIds, pageToken });
      const page = await this.#unary(pb.ResourceServiceService.listResources, message, options);
      return { items: page.resources, issues: page.issues, next: page.nextPageToken };
    });
  }

  /** All resource templates of the named servers (none named: all). */
  listResourceTemplates(serverIds: string[] = [], options: RequestOptions = {}): Promise<Listing<pb.ResourceTemplate>> {
    return allPages(async (pageToken) => {
      const message = pb.ListResourceTemplatesRequest.fromPartial({ namespace: this.namespace, serverIds, pageToken });
      const page = await this.#unary(pb.ResourceServiceService.listResourceTemplates, message, options);
      return { items: page.resourceTemplates, issues: page.issues, next: page.nextPageToken };
    });
  }

  /** Reads a resource from its server. */
  readResource(serverId: string, uri: string, options: RequestOptions = {}): Promise<pb.ReadResourceResponse> {
    const message = pb.ReadResourceRequest.fromPartial({ namespace: this.namespace, serverId, uri });
    return this.#unary(pb.ResourceServiceService.readResource, message, options);
  }

  /** The URIs that have changed, from the resource or below it, for as long as it is read. */
  async *subscribeResource(
    serverId: string,
    uri: string,
    options: RequestOptions = {},
  ): AsyncGenerator<string, void, undefined> {
    const message = pb.SubscribeResourceRequest.fromPartial({ namespace: this.namespace, serverId, uri });
    const method = pb.ResourceServiceService.subscribeResource;
    for await (const { event } of serverStream(this.#channel, method, message, options)) {
      if (event?.$case === "updated") {
        yield event.value.uri;
      }
    }
  }

  /** All prompts of the named servers (none named: all). */
  listPrompts(serverIds: string[] = [], options: RequestOptions = {}): Promise<Listing<pb.Prompt>> {
    return allPages(async (pageToken) => {
      const message = pb.ListPromptsRequest.fromPartial({ namespace: this.namespace, serverIds, pageToken });
      const page = await this.#unary(pb.PromptServiceService.listPrompts, message, options);
      return { items: page.prompts, issues: page.issues, next: page.nextPageToken };
    });
  }

  /** Fills a prompt with arguments. */
  getPrompt(
    serverId: string,
    name: string,
    args: Record<string, string> = {},
    options: RequestOptions = {},
  ): Promise<pb.GetPromptResponse> {
    const message = pb.GetPromptRequest.fromPartial({ namespace: this.namespace, serverId, name, arguments: args });
    return this.#unary(pb.PromptServiceService.getPrompt, message, options);
  }

  /** Asks a server for values of an argument of a prompt or of a resource template. */
  complete(request: pb.DeepPartial<pb.CompleteRequest>, options: RequestOptions = {}): Promise<pb.CompleteResponse> {
    return this.#unary(pb.PromptServiceService.complete, this.#fill(pb.CompleteRequest.fromPartial(request)), options);
  }

  // Questions.

  /** The pending questions of the namespace, oldest first. */
  async listElicitations(options: RequestOptions = {}): Promise<pb.Elicitation[]> {
    const pages = await allPages(async (pageToken) => {
      const message = pb.ListElicitationsRequest.fromPartial({ namespace: this.namespace, pageToken });
      const page = await this.#unary(pb.ElicitationServiceService.listElicitations, message, options);
      return { items: page.elicitations, issues: [], next: page.nextPageToken };
    });
    return pages.items;
  }

  /** One question. */
  async getElicitation(elicitationId: string, options: RequestOptions = {}): Promise<pb.Elicitation> {
    const message = pb.GetElicitationRequest.fromPartial({ namespace: this.namespace, elicitationId });
    return required((await this.#unary(pb.ElicitationServiceService.getElicitation, message, options)).elicitation);
  }

  /**
   * Answers a question; the content of a form as a value or JSON text. `INVALID_FIELD` with `fieldViolations` leaves it
   * pending, `ALREADY_RESOLVED` means that it has ended.
   */
  async respondElicitation(
    elicitationId: string,
    action: pb.ElicitationAction,
    content?: Record<string, unknown> | string,
    options: RequestOptions = {},
  ): Promise<pb.Elicitation> {
    const contentJson = content === undefined ? undefined : toJsonText(content);
    const message = { namespace: this.namespace, elicitationId, action, contentJson };
    return required((await this.#unary(pb.ElicitationServiceService.respondElicitation, message, options)).elicitation);
  }

  /** The pending requests of the namespace for an answer of a model, oldest first. */
  async listSamplingRequests(options: RequestOptions = {}): Promise<pb.SamplingRequest[]> {
    const pages = await allPages(async (pageToken) => {
      const message = pb.ListSamplingRequestsRequest.fromPartial({ namespace: this.namespace, pageToken });
      const page = await this.#unary(pb.SamplingServiceService.listSamplingRequests, message, options);
      return { items: page.samplingRequests, issues: [], next: page.nextPageToken };
    });
    return pages.items;
  }

  /** Gives the server the answer of a model: a `CreateMessageResult` of MCP as a value or JSON text. */
  acceptSampling(
    samplingRequestId: string,
    result: Record<string, unknown> | string,
    options: RequestOptions = {},
  ): Promise<pb.SamplingRequest> {
    const action = { $case: "accept", value: { resultJson: toJsonText(result) } } as const;
    return this.#respondSampling({ namespace: this.namespace, samplingRequestId, action }, options);
  }

  /** Refuses a request for an answer of a model. */
  rejectSampling(samplingRequestId: string, options: RequestOptions = {}): Promise<pb.SamplingRequest> {
    const action = { $case: "reject", value: {} } as const;
    return this.#respondSampling({ namespace: this.namespace, samplingRequestId, action }, options);
  }

  async #respondSampling(message: pb.RespondSamplingRequest, options: RequestOptions): Promise<pb.SamplingRequest> {
    return required((await this.#unary(pb.SamplingServiceService.respondSampling, message, options)).samplingRequest);
  }

  /** Answers what servers ask, for as long as the session is open; see {@link QuestionHandlers}. */
  answerQuestions(handlers: QuestionHandlers, options: QuestionOptions = {}): QuestionSession {
    return new QuestionSession(this, handlers, options);
  }

  // Signing in.

  /** Signs a user in: opens a browser or prints the URL, and waits for the end. Throws `SignInError` without success. */
  signIn(serverId: string, options: SignInOptions = {}): Promise<pb.SignIn> {
    return signIn(this, serverId, options);
  }

  /** Begins a sign-in; `authUrl` says where the user goes on. */
  async startSignIn(serverId: string, scopes: string[] = [], options: RequestOptions = {}): Promise<pb.SignIn> {
    const message = { namespace: this.namespace, serverId, scopes };
    return required((await this.#unary(pb.AuthServiceService.startSignIn, message, options)).signIn);
  }

  /** A sign-in; with a wait, as soon as it is no longer pending. */
  async getSignIn(signInId: string, waitMs = 0, options: RequestOptions = {}): Promise<pb.SignIn> {
    const message = { namespace: this.namespace, signInId, waitTimeout: duration(waitMs) };
    return required((await this.#unary(pb.AuthServiceService.getSignIn, message, options)).signIn);
  }

  /** Completes a sign-in with the whole URL that the browser was redirected to. */
  async completeSignIn(redirectUrl: string, options: RequestOptions = {}): Promise<pb.SignIn> {
    const message = { namespace: this.namespace, redirectUrl, signInId: "" };
    return required((await this.#unary(pb.AuthServiceService.completeSignIn, message, options)).signIn);
  }

  /** Ends a pending sign-in. */
  async cancelSignIn(signInId: string, options: RequestOptions = {}): Promise<pb.SignIn> {
    const message = { namespace: this.namespace, signInId };
    return required((await this.#unary(pb.AuthServiceService.cancelSignIn, message, options)).signIn);
  }

  /** Forgets the tokens of a server, and asks the authorization server to revoke them. */
  signOut(serverId: string, options: RequestOptions = {}): Promise<pb.SignOutResponse> {
    return this.#unary(pb.AuthServiceService.signOut, { namespace: this.namespace, serverId }, options);
  }

  /** What the daemon is authorized to do at a server. */
  async getAuthStatus(serverId: string, options: RequestOptions = {}): Promise<pb.AuthStatus> {
    const message = { namespace: this.namespace, serverId };
    return required((await this.#unary(pb.AuthServiceService.getAuthStatus, message, options)).status);
  }

  // Updates.

  /**
   * The state of everything that matches, then every change in the order of the commits, for as long as it is read.
   *
   * After a lost connection or a restart of the daemon it reconnects by itself, with a growing pause of at most 5 s (or what
   * the daemon asks for, at most 30 s), and goes on behind the last update: nothing is missed and nothing comes twice. Where
   * that is impossible it says so with `reset`. It throws only what can never succeed, for example for a namespace that this
   * process may not use, and the signal's reason. Not reading costs the daemon nothing.
   */
  updates(filter: UpdateFilter = {}): AsyncGenerator<Update, never, undefined> {
    const namespaces = filter.namespaces ?? (this.namespace ? [this.namespace] : []);
    return followUpdates(this.#channel, { ...filter, namespaces });
  }
}

function required<T>(field: T | undefined): T {
  if (field === undefined) {
    throw new ContractError("the thing that was asked for is missing");
  }
  return field;
}

interface Page<T> {
  items: T[];
  issues: pb.ListingIssue[];
  next: string;
}

/** Fetches pages until the last one. The daemon bounds the number of entries. */
async function allPages<T>(fetch: (token: string) => Promise<Page<T>>): Promise<Listing<T>> {
  const listing: Listing<T> = { items: [], issues: [] };
  for (let token = ""; ; ) {
    const page = await fetch(token);
    listing.items.push(...page.items);
    listing.issues.push(...page.issues);
    if (page.next === "") {
      return listing;
    }
    if (page.next === token) {
      throw new ContractError("a page names itself as the next one");
    }
    token = page.next;
  }
}
