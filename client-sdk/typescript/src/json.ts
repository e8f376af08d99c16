/**
 * JSON without loss. Every `...Json` field of the contract is the text as the server wrote it; these two functions go to values
 * and back.
 */

/** What becomes of an integer that a JavaScript number cannot hold exactly. */
export type BigIntegers = "bigint" | "string" | "number";

const START = /["\d-]/g;
const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const INTEGER = /^-?\d+$/;

/** Where the string ends that begins here. Not a regular expression: those run out of stack within a string of some megabytes. */
function endOfString(text: string, start: number): number {
  for (let end = text.indexOf('"', start + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let backslashes = end;
    while (text[backslashes - 1] === "\\") {
      backslashes -= 1;
    }
    if ((end - backslashes) % 2 === 0) {
      return end + 1;
    }
  }
  return text.length;
}

/** Makes strings of the integers that a number cannot hold; they begin with the mark. */
function markIntegers(text: string, mark: string): string {
  let marked = "";
  let copied = 0;
  for (let at = 0; ; ) {
    START.lastIndex = at;
    const found = START.exec(text);
    if (found === null) {
      return copied === 0 ? text : marked + text.slice(copied);
    }
    if (found[0] === '"') {
      at = endOfString(text, found.index);
      continue;
    }
    NUMBER.lastIndex = found.index;
    const number = NUMBER.exec(text)?.[0] ?? "-";
    at = found.index + number.length;
    if (INTEGER.test(number) && !Number.isSafeInteger(Number(number))) {
      marked += `${text.slice(copied, found.index)}"${mark}${number}"`;
      copied = at;
    }
  }
}

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
  // No text holds it, escaped or not: they were written before it was drawn.
  const mark = `integer-${crypto.randomUUID()}:`;
  const marked = markIntegers(text, mark);
  if (marked === text) {
    return JSON.parse(text);
  }
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
