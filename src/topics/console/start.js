/** First steps: commands that work against this very server. */

import { h } from "./dom.js";

export function start({ client }) {
  const url = location.origin;
  const auth = client.token === null ? "" : " \\\n  -H 'Authorization: Bearer <key>'";
  const json = " \\\n  -H 'Content-Type: application/json'";
  const steps = [
    ["Write a record", `curl ${url}/v0/topics/hello${json}${auth} \\\n  -d '{"records":[{"data":{"greeting":"hello"}}]}'`],
    ["Read it back", `curl ${url}/v0/topics/hello/diff${json}${auth} \\\n  -d '{"from_seq":0}'`],
    ["Follow it in a page or in Node", `import { Client } from "${url}/topics.js";\nfor await (const record of new Client("${url}").topic("hello").follow()) console.log(record.data);`],
    ["From a shell", `topics tail hello --url ${url}`],
  ];
  return {
    title: "First steps",
    element: h("div", {}, h("h1", {}, "First steps"), steps.map(([label, code]) => h("section", {}, h("h2", {}, label), h("pre", { tabindex: "0" }, h("code", {}, code))))),
  };
}
