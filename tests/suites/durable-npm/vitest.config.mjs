// The suite lies in node_modules, which vitest leaves out unless it is told otherwise. One of its
// tests compares 102,400 bytes one by one, which a machine with other work does not do in 5 s.
export default {
  test: { include: ["conformance.test.mjs"], exclude: [], testTimeout: 20_000 },
};
