export function greeting(name) {
  return `Hello, ${name?.trim() || "stranger"}!\n`;
}
