/** The exercise in a browser, as functions of the page. */

import { first, second } from "./exercise.ts";

Object.assign(globalThis, { first, second });
