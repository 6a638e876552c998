// StreamDB of the published package on a stream of a node: what was there, what comes, what it
// writes. Prints a line of JSON for each step; the test appends in between.
import { createStateSchema } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"

const [url, live] = process.argv.slice(2)
const LIMIT_MS = 10_000

const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
})
const streamOptions = { url, contentType: "application/json" }
const db = createStreamDB({ streamOptions, state, live: live === "true" ? true : live })

const say = (step, more) => console.log(JSON.stringify({ step, ...more }))

function users() {
  const rows = [...db.collections.users.values()].map(({ id, name }) => [id, name])
  return Object.fromEntries(rows.sort())
}

async function until(test) {
  const end = Date.now() + LIMIT_MS
  while (!test(users())) {
    if (Date.now() > end) throw new Error(`never so: ${JSON.stringify(users())}`)
    await new Promise((done) => setTimeout(done, 10))
  }
}

await db.preload()
say("preloaded", { users: users() })
await until((all) => all.bob === "Bob" && !("ann" in all))
say("followed", { users: users() })
const event = state.users.insert({ value: { id: "eve", name: "Eve" } })
await db.stream.append(JSON.stringify(event))
await until((all) => all.eve === "Eve")
say("written", { users: users() })
db.close()
process.exit(0)
