import assert from "node:assert";
import test from "node:test";
import { greeting } from "../src/greeting.js";

test("greets by name", () => assert.equal(greeting("Ada"), "Hello, Ada!\n"));
test("greets strangers", () => assert.equal(greeting(" "), "Hello, stranger!\n"));
