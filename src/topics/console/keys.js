/** Keys: which the server has and what each may do. The secrets are not known to the server either. */

import { h, problem, show, table } from "./dom.js";

const MEANING = {
  read: "read and follow topics, look at queues and routers",
  write: "append records; claim, ack and return jobs",
  delete: "delete records, topics and routers",
  admin: "create and configure topics and routers; see keys",
};

export function keys({ client, may, mine }) {
  const holder = h("div", {}, h("p", { class: "soft" }, "Reading …"));
  const load = async () => {
    if (mine.key === null) return show(holder, h("p", {}, "This server has no keys: whoever reaches it may do everything. Set ", h("code", {}, "TOPICS_API_KEYS"), " to change that."));
    const found = may.admin ? (await client.request("GET", "/v0/keys")).keys : [{ ...mine, yours: true }];
    const rows = found.map((each) => h("tr", {}, h("th", { scope: "row" }, h("code", {}, each.key), each.yours && h("span", { class: "badge" }, "yours")), h("td", {}, each.scopes.map((scope) => h("span", { class: "scope", title: MEANING[scope] }, scope))), h("td", { class: "free" }, each.prefixes.length ? each.prefixes.map((prefix) => [h("code", {}, `${prefix}*`), " "]) : "all names")));
    return show(holder, table("Keys", ["key", "scopes", "topics and routers"], rows), !may.admin && h("p", { class: "soft" }, "Other keys are shown to a key with the scope admin."));
  };
  load().catch((error) => show(holder, problem(error)));
  return {
    title: "Keys",
    element: h(
      "div",
      {},
      h("h1", {}, "Keys"),
      h("section", {}, h("p", { class: "soft" }, "A key is named by the first 8 digits of its SHA-256, as in the log. Nobody can see a secret here: the server does not keep them."), holder),
      h("section", {}, h("h2", {}, "What a scope allows"), h("dl", { class: "pairs" }, Object.entries(MEANING).map(([scope, text]) => h("div", {}, h("dt", {}, h("span", { class: "scope" }, scope)), h("dd", {}, text))))),
    ),
  };
}
