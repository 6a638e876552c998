import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({ baseUrl: process.env.MILLPOND_URL, longPollTimeoutMs: 500, subscriptions: true });
