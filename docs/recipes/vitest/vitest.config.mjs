// One server for the run; files take turns, since each test resets it.
export default { test: { globalSetup: "./forgelet.mjs", fileParallelism: false } };
