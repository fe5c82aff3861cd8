/**
 * Pulse: the state of the server every two seconds while somebody looks, and the rates of the last two minutes.
 *
 * One small request serves all that the console shows of the whole server (`GET /v0/overview`); `question` says which
 * topics the page of now wants in it. Nothing is asked while the page is hidden. This is the one place that knows how
 * the numbers come.
 */

const EVERY_MS = 2_000;
const KEPT = 60;
const TOPICS_MAX = 1_000;

export class Pulse extends EventTarget {
  constructor(client) {
    super();
    this.client = client;
    /** The last answer, as the API has it; null before the first. */
    this.now = null;
    this.error = null;
    this.question = "limit=0";
    this.total = [];
    this._rates = new Map();
    this._timer = null;
    this._asked = 0;
    this._taken = 0;
    document.addEventListener("visibilitychange", () => this.beat());
  }

  /** From now on, ask for these topics. */
  ask(question) {
    if (question === this.question) return;
    this.question = question;
    this.beat();
  }

  /** Ask now, and again in a while. */
  async beat() {
    clearTimeout(this._timer);
    if (document.hidden) return;
    const asked = ++this._asked;
    const question = this.question;
    let answer = null;
    let error = null;
    try {
      answer = await this.client.request("GET", `/v0/overview?${question}`, undefined, { retry: false, timeoutMs: 5_000 });
    } catch (failure) {
      error = failure;
    }
    // A later question has been asked since: its answer counts.
    if (asked !== this._asked) return;
    this.error = error;
    if (answer !== null) this._take(answer);
    this.dispatchEvent(new Event("beat"));
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.beat(), EVERY_MS);
  }

  /** What the clock of the server says, whatever the one of this machine does. */
  time() {
    return this.now === null ? Date.now() : this.now.now + performance.now() - this._taken;
  }

  /** The topic of this name as the last answer has it, or null. */
  topic(name) {
    return this.now?.topics.find((row) => row.topic === name) ?? null;
  }

  /** The last rates of a topic in records per second, oldest first. */
  of(name) {
    return this._rates.get(name) ?? [];
  }

  _take(answer) {
    this.now = answer;
    this._taken = performance.now();
    if (answer.server.rate !== null) keep(this.total, answer.server.rate);
    for (const { topic, rate } of answer.topics) {
      // Nothing is known of a topic that the server looks at for the first time.
      if (rate === null) continue;
      const rates = this._rates.get(topic) ?? [];
      // The one that was not seen for the longest time makes room.
      this._rates.delete(topic);
      this._rates.set(topic, keep(rates, rate));
      if (this._rates.size > TOPICS_MAX) this._rates.delete(this._rates.keys().next().value);
    }
  }
}

function keep(values, value) {
  values.push(value);
  if (values.length > KEPT) values.shift();
  return values;
}
