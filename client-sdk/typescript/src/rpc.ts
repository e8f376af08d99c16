/** One RPC as a promise, or as an async iterable. */

import { type CallOptions, type Client as Channel, type ClientReadableStream, Metadata, type ServiceError } from "@grpc/grpc-js";

import { errorFrom } from "./errors.js";

/** What every request can be given. */
export interface RequestOptions {
  /** Ends the request, at the MCP server too; the promise or the iteration then fails with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The deadline of the request, in milliseconds from now. Default: the client's. */
  deadlineMs?: number | undefined;
}

/** A method of a generated service definition. */
export interface Method<Request, Response> {
  path: string;
  requestSerialize(value: Request): Buffer;
  responseDeserialize(value: Buffer): Response;
}

function callOptions(options: RequestOptions): CallOptions {
  return options.deadlineMs === undefined ? {} : { deadline: Date.now() + options.deadlineMs };
}

/** A unary RPC. */
export function unary<Request, Response>(
  channel: Channel,
  method: Method<Request, Response>,
  request: Request,
  options: RequestOptions,
): Promise<Response> {
  const { signal } = options;
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason as Error);
      return;
    }
    const onAbort = () => call.cancel();
    const call = channel.makeUnaryRequest(
      method.path,
      method.requestSerialize,
      method.responseDeserialize,
      request,
      new Metadata(),
      callOptions(options),
      (error: ServiceError | null, response?: Response) => {
        signal?.removeEventListener("abort", onAbort);
        if (error === null) {
          resolve(response as Response);
        } else {
          reject(signal?.aborted ? (signal.reason as Error) : errorFrom(error));
        }
      },
    );
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/**
 * A server stream; reading sets the pace. Leaving the loop, and the signal, end the RPC.
 */
export async function* serverStream<Request, Response>(
  channel: Channel,
  method: Method<Request, Response>,
  request: Request,
  options: RequestOptions,
): AsyncGenerator<Response, void, undefined> {
  const { signal } = options;
  signal?.throwIfAborted();
  const stream: ClientReadableStream<Response> = channel.makeServerStreamRequest(
    method.path,
    method.requestSerialize,
    method.responseDeserialize,
    request,
    new Metadata(),
    callOptions(options),
  );
  // The end of a stream that nobody reads any more is an event all the same.
  stream.on("error", () => undefined);
  const onAbort = () => stream.cancel();
  signal?.addEventListener("abort", onAbort, { once: true });
  try {
    for await (const response of stream as AsyncIterable<Response>) {
      yield response;
    }
  } catch (error) {
    if (signal?.aborted) {
      throw signal.reason;
    }
    throw isServiceError(error) ? errorFrom(error) : error;
  } finally {
    signal?.removeEventListener("abort", onAbort);
    stream.cancel();
  }
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "code" in error && "details" in error;
}
