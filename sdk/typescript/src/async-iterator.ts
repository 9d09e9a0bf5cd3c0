/** The key of an async iterator's method, also where the engine has no `Symbol.asyncIterator`. */

/** Hermes lacks the symbol, unless Expo adds it. Babel's `for await` then reads this string. */
export const ASYNC_ITERATOR: typeof Symbol.asyncIterator =
  (Symbol as { asyncIterator?: typeof Symbol.asyncIterator }).asyncIterator ?? ("@@asyncIterator" as unknown as typeof Symbol.asyncIterator);
