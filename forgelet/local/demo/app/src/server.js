import { createServer } from "node:http";
import { greeting } from "./greeting.js";

// Answers every request with a greeting.
createServer((request, response) => {
  const name = new URL(request.url, "http://localhost").searchParams.get("name");
  response.end(greeting(name));
}).listen(3000);
