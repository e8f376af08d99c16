/**
 * JSON without loss. Every `...Json` field of the contract is the text as the server wrote it; these two functions go to values
 * and back.
 */

/** What becomes of an integer that a JavaScript number cannot hold exactly. */
export type BigIntegers = "bigint" | "string" | "number";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;

/**
 * Parses JSON text.
 *
 * Integers beyond ±(2⁵³ − 1) become `bigint` by default; `"string"` gives their digits and `"number"` rounds them, as
 * `JSON.parse` does. Numbers with a fraction or an exponent always become the nearest `number`: where every digit counts, read
 * the text itself.
 */
export function parseJson(text: string, bigIntegers: BigIntegers = "bigint"): unknown {
  if (bigIntegers === "number") {
    return JSON.parse(text);
  }
  let prefix: string | undefined;
  const marked = text.replace(TOKENS, (token) => {
    if (!INTEGER.test(token) || Number.isSafeInteger(Number(token))) {
      return token;
    }
    // A text that holds it, escaped or not, was not written before it was drawn.
    prefix ??= `integer-${crypto.randomUUID()}:`;
    return `"${prefix}${token}"`;
  });
  if (prefix === undefined) {
    return JSON.parse(text);
  }
  const mark = prefix;
  return JSON.parse(marked, (_key, value: unknown) => {
    if (typeof value !== "string" || !value.startsWith(mark)) {
      return value;
    }
    const digits = value.slice(mark.length);
    return bigIntegers === "bigint" ? BigInt(digits) : digits;
  });
}

/** Writes a value as JSON text; `bigint` values are written as the integers that they are. */
export function stringifyJson(value: unknown): string {
  let found = false;
  const mark = `integer-${crypto.randomUUID()}:`;
  const text = JSON.stringify(value, (_key, member: unknown) => {
    if (typeof member !== "bigint") {
      return member;
    }
    found = true;
    return `${mark}${member}`;
  }) as string | undefined;
  if (text === undefined) {
    throw new TypeError("the value has no JSON form");
  }
  return found ? text.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1") : text;
}

/** Takes JSON text as it is, and anything else as a value. */
export function toJsonText(value: unknown): string {
  return typeof value === "string" ? value : stringifyJson(value);
}
