// Runs the vectors of tests/state/vectors.json against the published package, in the way of the
// seed (section 8): guards, `apply`, `clear` on reset. Prints one line of JSON for each vector:
// what it has in the end; the test compares. `undefined` is told as {"$undefined": true}.
import { readFileSync } from "node:fs"
import {
  MaterializedState,
  createStateSchema,
  isChangeEvent,
  isControlEvent,
} from "@durable-streams/state"

const { vectors } = JSON.parse(readFileSync(process.argv[2], "utf8"))

const told = (value) => (value === undefined ? { $undefined: true } : value)

function standard(schema) {
  const validate = (value) => {
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value)
    const issues = []
    if (schema.type === "object" && !isObject) issues.push({ message: "no object" })
    for (const name of (isObject && schema.required) || [])
      if (!(name in value)) issues.push({ message: `${name} is missing` })
    for (const [name, part] of Object.entries((isObject && schema.properties) || {}))
      if (name in value && typeof value[name] !== part.type) issues.push({ message: name })
    return issues.length ? { issues } : { value }
  }
  return { "~standard": { version: 1, vendor: "vectors", validate } }
}

function take(state, record) {
  const event = record && record.$raw !== undefined ? JSON.parse(record.$raw) : record
  if (isChangeEvent(event)) state.apply(event)
  else if (isControlEvent(event) && event.headers.control === "reset") state.clear()
}

function materialize(vector) {
  const state = new MaterializedState()
  let throws = 0
  const order = vector.deliveries || vector.events.keys()
  for (const at of order) {
    try {
      take(state, vector.events[at])
    } catch {
      throws += 1
    }
  }
  const has = {}
  for (const type of state.types) {
    const rows = [...state.getType(type)].map(([key, value]) => [key, told(value)])
    if (rows.length) has[type] = Object.fromEntries(rows)
  }
  const answers = (vector.get || []).map(([type, key]) => told(state.get(type, key)))
  const sizes = Object.keys(vector.get_type || {}).map((type) => state.getType(type).size)
  const types = state.types
  const count = state.typeCount
  if (vector.clear) state.clear()
  return { state: has, types, count, throws, get: answers, sizes, left: state.typeCount }
}

function produce({ schema, type, key, value }) {
  const made = createStateSchema({ things: { schema: standard(schema), type, primaryKey: key } })
  return made.things.insert({ value })
}

function define(definition) {
  const schema = standard({})
  const of = ([name, { type }]) => [name, { schema, type, primaryKey: "id" }]
  return createStateSchema(Object.fromEntries(Object.entries(definition).map(of)))
}

function refused(run) {
  try {
    run()
  } catch {
    return { refused: true }
  }
  return { refused: false }
}

for (const vector of vectors) {
  let result
  if (vector.produce) result = refused(() => produce(vector.produce))
  else if (vector.definition) result = refused(() => define(vector.definition))
  else result = materialize(vector)
  console.log(JSON.stringify({ name: vector.name, ...result }))
}
console.log(JSON.stringify({ done: vectors.length }))
