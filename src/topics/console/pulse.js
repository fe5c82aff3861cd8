/**
 * Pulse: the metrics of the server every two seconds while somebody looks, and the rates that follow from them.
 *
 * One small request serves all that the console shows of the whole server. Nothing is asked while the page is hidden.
 */

const EVERY_MS = 2_000;
const KEPT = 60;

export class Pulse extends EventTarget {
  constructor(client) {
    super();
    this.client = client;
    this.metrics = null;
    this.error = null;
    this.rates = new Map();
    this.total = [];
    this._heads = null;
    this._at = 0;
    this._timer = null;
    document.addEventListener("visibilitychange", () => this.beat());
  }

  /** Ask now, and again in a while. */
  async beat() {
    clearTimeout(this._timer);
    if (document.hidden) return;
    try {
      this._take(await this.client.request("GET", "/v0/metrics", undefined, { retry: false, timeoutMs: 5_000 }));
      this.error = null;
    } catch (error) {
      this.error = error;
    }
    this.dispatchEvent(new Event("beat"));
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this.beat(), EVERY_MS);
  }

  /** The last rates of a topic in records per second, oldest first. */
  of(topic) {
    return this.rates.get(topic) ?? [];
  }

  _take(metrics) {
    const now = performance.now();
    const heads = metrics.topics_topic_head_seq ?? {};
    if (this._heads !== null) {
      const seconds = (now - this._at) / 1000;
      let sum = 0;
      for (const [topic, head] of Object.entries(heads)) {
        const rate = Math.max(0, head - (this._heads[topic] ?? 0)) / seconds;
        const kept = this.rates.get(topic) ?? [];
        kept.push(rate);
        if (kept.length > KEPT) kept.shift();
        this.rates.set(topic, kept);
        sum += rate;
      }
      for (const topic of this.rates.keys()) if (!(topic in heads)) this.rates.delete(topic);
      this.total.push(sum);
      if (this.total.length > KEPT) this.total.shift();
    }
    this._heads = heads;
    this._at = now;
    this.metrics = metrics;
  }
}
