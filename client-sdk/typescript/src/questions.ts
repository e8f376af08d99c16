/** Answers what servers ask, with a function for each kind of question. */

import type { Client } from "./client.js";
import { ConnectionLostError, SidecarError } from "./errors.js";
import { toJsonText } from "./json.js";
import {
  type CanAnswer,
  type DeepPartial,
  type Elicitation,
  ElicitationAction,
  ElicitationMode,
  ElicitationState,
  type SamplingRequest,
  UpdateKind,
} from "./proto.js";
import { jittered, pause } from "./wait.js";

/** Questions that are put to the handlers at the same time; further ones wait. */
const DEFAULT_CONCURRENCY = 16;
/** For how long an answer is given again while the daemon cannot be reached. */
const GIVE_ANSWER_FOR_MS = 60_000;

/** An answer; `undefined` leaves the question for somebody else. */
export type Answer = "accept" | "decline" | "cancel" | undefined;

/** What a handler is told beside the question. */
export interface QuestionContext {
  /** Aborted when the question has ended without this answer, and when the handlers are detached. */
  signal: AbortSignal;
}

/**
 * A function for each kind of question that this app can answer. While they are attached servers are told what they can ask.
 * A handler that throws leaves its question pending, for another app or the next time these are attached.
 */
export interface QuestionHandlers {
  /** Fills in a form: its content as a value or JSON text, or another answer. */
  form?: (
    question: Elicitation,
    context: QuestionContext,
  ) => Promise<{ content: Record<string, unknown> | string } | Exclude<Answer, "accept">>;
  /** Shows a URL, with its host and `urlWarnings`, and opens it if the user agrees. */
  url?: (question: Elicitation, context: QuestionContext) => Promise<Answer>;
  /** Shows a call that needs consent: `toolName`, `argumentsJson`. */
  approval?: (question: Elicitation, context: QuestionContext) => Promise<Answer>;
  /** Asks a language model: the result as a value or JSON text (MCP `CreateMessageResult`). */
  sampling?: (
    request: SamplingRequest,
    context: QuestionContext,
  ) => Promise<{ result: Record<string, unknown> | string } | "reject" | undefined>;
}

/** Settings of {@link Client.answerQuestions}. */
export interface QuestionOptions {
  /** Only these namespaces. Default: the client's. */
  namespaces?: string[];
  /** Only questions of these servers. */
  serverIds?: string[];
  /** The model of `sampling` can use tools of the server. */
  samplingTools?: boolean;
  /** `sampling` can add context of servers. */
  samplingContext?: boolean;
  /** How many questions are put to the handlers at the same time. Default: 16. */
  concurrency?: number;
  /** Told of a handler that threw, and of an answer that the daemon did not take. Default: a warning of the process. */
  onError?: (error: unknown, question: Elicitation | SamplingRequest) => void;
  /** Detaches the handlers. */
  signal?: AbortSignal | undefined;
}

type Question = { kind: "elicitation"; about: Elicitation } | { kind: "sampling"; about: SamplingRequest };

/** Handlers that are attached. */
export class QuestionSession {
  /** Settled when the daemon knows what this app can answer. */
  readonly ready: Promise<void>;
  /** Settled when the handlers are detached; rejected if they never can be attached, for example for lack of access. */
  readonly done: Promise<void>;

  readonly #client: Client;
  readonly #handlers: QuestionHandlers;
  readonly #options: QuestionOptions;
  readonly #end = new AbortController();
  /** Questions that are with a handler, or wait for one; and those that are left to others. */
  readonly #taken = new Map<string, AbortController>();
  readonly #waiting: Question[] = [];
  #running = 0;

  constructor(client: Client, handlers: QuestionHandlers, options: QuestionOptions) {
    this.#client = client;
    this.#handlers = handlers;
    this.#options = options;
    const onAbort = () => this.#end.abort(options.signal?.reason);
    if (options.signal?.aborted) {
      onAbort();
    } else {
      options.signal?.addEventListener("abort", onAbort, { once: true });
    }
    let attached!: () => void;
    let failed!: (error: unknown) => void;
    this.ready = new Promise((resolve, reject) => ([attached, failed] = [resolve, reject]));
    this.ready.catch(() => undefined);
    this.done = this.#follow(attached).then(
      () => undefined,
      (error: unknown) => {
        failed(error);
        if (!this.#end.signal.aborted) {
          throw error;
        }
      },
    ).finally(() => {
      options.signal?.removeEventListener("abort", onAbort);
      this.#end.abort();
      this.#taken.forEach((one) => one.abort());
    });
    this.done.catch(() => undefined);
  }

  /** Detaches the handlers; what they have not answered stays pending. */
  async close(): Promise<void> {
    this.#end.abort();
    await this.done;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #follow(attached: () => void): Promise<void> {
    const { namespaces, serverIds } = this.#options;
    const updates = this.#client.updates({
      ...(namespaces && { namespaces }),
      ...(serverIds && { serverIds }),
      kinds: [UpdateKind.UPDATE_KIND_ELICITATION, UpdateKind.UPDATE_KIND_SAMPLING],
      canAnswer: this.#canAnswer(),
      signal: this.#end.signal,
    });
    // The ids of a snapshot, which says by silence that all others have ended.
    let snapshot: Set<string> | undefined = new Set();
    for await (const update of updates) {
      switch (update.type) {
        case "elicitation":
          snapshot?.add(update.elicitation.id);
          this.#see({ kind: "elicitation", about: update.elicitation });
          break;
        case "sampling":
          snapshot?.add(update.samplingRequest.id);
          this.#see({ kind: "sampling", about: update.samplingRequest });
          break;
        case "deleted":
          this.#ended(update.id);
          break;
        case "reset":
          snapshot = new Set();
          break;
        case "snapshotEnd":
          for (const id of [...this.#taken.keys()]) {
            if (snapshot && !snapshot.has(id)) {
              this.#ended(id);
            }
          }
          snapshot = undefined;
          attached();
          break;
        default:
      }
    }
  }

  #canAnswer(): DeepPartial<CanAnswer> {
    const { form, url, approval, sampling } = this.#handlers;
    const { samplingTools, samplingContext } = this.#options;
    return {
      elicitationForm: form !== undefined,
      elicitationUrl: url !== undefined,
      approval: approval !== undefined,
      sampling: sampling !== undefined,
      samplingTools: sampling !== undefined && samplingTools === true,
      samplingContext: sampling !== undefined && samplingContext === true,
    };
  }

  #see(question: Question): void {
    const { id, state } = question.about;
    if (state !== ElicitationState.ELICITATION_STATE_PENDING) {
      this.#ended(id);
    } else if (!this.#taken.has(id)) {
      this.#taken.set(id, new AbortController());
      this.#waiting.push(question);
      this.#next();
    }
  }

  #ended(id: string): void {
    this.#taken.get(id)?.abort();
    this.#taken.delete(id);
    const index = this.#waiting.findIndex(({ about }) => about.id === id);
    if (index >= 0) {
      this.#waiting.splice(index, 1);
    }
  }

  #next(): void {
    while (this.#running < (this.#options.concurrency ?? DEFAULT_CONCURRENCY) && !this.#end.signal.aborted) {
      const question = this.#waiting.shift();
      if (question === undefined) {
        return;
      }
      this.#running += 1;
      void this.#answer(question).finally(() => {
        this.#running -= 1;
        this.#next();
      });
    }
  }

  async #answer(question: Question): Promise<void> {
    const ended = this.#taken.get(question.about.id)?.signal;
    if (ended === undefined) {
      return;
    }
    try {
      const give =
        question.kind === "sampling" ? await this.#sample(question.about, ended) : await this.#elicit(question.about, ended);
      if (give !== undefined && !ended.aborted) {
        await this.#give(give, ended);
      }
    } catch (error) {
      if (!ended.aborted) {
        this.#report(error, question.about);
      }
    }
  }

  #report(error: unknown, question: Elicitation | SamplingRequest): void {
    if (this.#options.onError) {
      this.#options.onError(error, question);
    } else {
      process.emitWarning(`the question ${question.id} of ${question.serverId} stays unanswered: ${String(error)}`);
    }
  }

  async #elicit(question: Elicitation, signal: AbortSignal): Promise<(() => Promise<unknown>) | undefined> {
    const client = this.#client.withNamespace(question.namespace);
    const context = { signal };
    let answer: Answer;
    let content: string | undefined;
    switch (question.mode) {
      case ElicitationMode.ELICITATION_MODE_FORM: {
        const filled = await this.#handlers.form?.(question, context);
        answer = typeof filled === "object" ? "accept" : filled;
        content = typeof filled === "object" ? toJsonText(filled.content) : undefined;
        break;
      }
      case ElicitationMode.ELICITATION_MODE_URL:
        answer = await this.#handlers.url?.(question, context);
        break;
      case ElicitationMode.ELICITATION_MODE_APPROVAL:
        answer = await this.#handlers.approval?.(question, context);
        break;
      default:
        return undefined;
    }
    const action = answer && ACTIONS[answer];
    return action && (() => client.respondElicitation(question.id, action, content, { signal }));
  }

  async #sample(request: SamplingRequest, signal: AbortSignal): Promise<(() => Promise<unknown>) | undefined> {
    const client = this.#client.withNamespace(request.namespace);
    const answer = await this.#handlers.sampling?.(request, { signal });
    if (answer === undefined) {
      return undefined;
    }
    if (answer === "reject") {
      return () => client.rejectSampling(request.id, { signal });
    }
    const result = toJsonText(answer.result);
    return () => client.acceptSampling(request.id, result, { signal });
  }

  /** Gives an answer, again while the daemon cannot be reached: it counts once. */
  async #give(answer: () => Promise<unknown>, signal: AbortSignal): Promise<void> {
    const end = performance.now() + GIVE_ANSWER_FOR_MS;
    for (let delay = 100; ; delay = Math.min(delay * 2, 5000)) {
      try {
        await answer();
        return;
      } catch (error) {
        const refusal = error instanceof SidecarError ? error : undefined;
        if (refusal?.reason === "ALREADY_RESOLVED") {
          return; // Somebody else was faster, or this is a repetition of what counts already.
        }
        const lost = refusal instanceof ConnectionLostError || refusal?.codeName === "UNAVAILABLE";
        if (!lost || performance.now() + delay > end) {
          throw error;
        }
        await pause(jittered(delay), signal);
      }
    }
  }
}

const ACTIONS = {
  accept: ElicitationAction.ELICITATION_ACTION_ACCEPT,
  decline: ElicitationAction.ELICITATION_ACTION_DECLINE,
  cancel: ElicitationAction.ELICITATION_ACTION_CANCEL,
} as const;
