/** Assertions, and the list of tests: the machine of Hermes has no test runner. */

export const tests = [];

/** Add a test. */
export function test(name, run) {
  tests.push({ name, run });
}

export function ok(value, what) {
  if (!value) throw new Error(`it does not hold: ${what}`);
}

export function equal(actual, expected) {
  const [left, right] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (left !== right) throw new Error(`${left} is not ${right}`);
}

/** Wait for a rejection that is an instance of a class, or has a name. Return the error. */
export async function rejects(promise, expected) {
  let error;
  try {
    await promise;
  } catch (caught) {
    error = caught;
  }
  if (error === undefined) throw new Error("nothing was thrown");
  const matches = typeof expected === "string" ? error.name === expected : error instanceof expected;
  if (!matches) throw new Error(`${error.name}: ${error.message} is not ${expected.name ?? expected}`);
  return error;
}

export const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** Wait until a condition holds. */
export async function until(condition, what) {
  const end = Date.now() + 60_000;
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`${what} did not happen in 60 s`);
    await wait(20);
  }
}
