// One server for the run. Test files run one after the other, because each test resets the server.
export default { test: { globalSetup: "./forgelet.mjs", fileParallelism: false } };
