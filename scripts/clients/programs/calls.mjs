// Functions that the JavaScript programs share: access to the tested server, and a line of output for each call.
export const URL_OF_SERVER = process.env.FORGELET_URL;
export const TOKEN = process.env.FORGELET_TOKEN;

// Report whether `action` throws an exception; return its value, or undefined.
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

// Send a request to the API as administrator, for what a program needs besides its client.
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
