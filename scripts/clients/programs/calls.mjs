// What the programs in JavaScript share: the server that is tried, and a line for each call.
export const URL_OF_SERVER = process.env.FORGELET_URL;
export const TOKEN = process.env.FORGELET_TOKEN;

// Report whether `action` throws, which it may; the value that it returns.
export async function call(area, name, action) {
  try {
    const value = await action();
    console.log(`ok\t${area}\t${name}`);
    return value;
  } catch (problem) {
    const message = String(problem?.message ?? problem).replace(/\s+/g, " ");
    console.log(`failed\t${area}\t${name}\t${message}`);
    return undefined;
  }
}

export function expect(right, what = "unexpected answer") {
  if (!right) throw new Error(typeof what === "string" ? what : JSON.stringify(what));
}

// Ask the API as its administrator, for what a program has to find.
export async function api(method, path, values) {
  const answer = await fetch(`${URL_OF_SERVER}/api/v4/${path}`, {
    method,
    headers: { "PRIVATE-TOKEN": TOKEN, "Content-Type": "application/json" },
    body: values && JSON.stringify(values),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}
