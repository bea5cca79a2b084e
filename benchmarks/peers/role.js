// The roles of graphile-worker and pg-boss. See role.py, which has the roles in Python.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [, , system, settingsText, verb, ...numbers] = process.argv;
const dsn = process.env.CHANCY_BENCH_DSN;
const settings = JSON.parse(settingsText);
const UNCOUNTED = 1e9;
/** The most sessions of any role; both libraries open them on demand. */
const SESSIONS = 10;

/** Nanoseconds since the epoch, with a resolution of a microsecond. */
const nowNs = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e3)) * 1000n;
const rest = (ms) => new Promise((done) => setTimeout(done, ms));
const numbersFrom = (first, end) => Array.from({ length: end - first }, (_, n) => first + n);

/** The file of benchmarks/tally.py. Node cannot map it into memory, so it is written with a delay. */
class Tally {
  constructor(directory, slots) {
    this.slots = slots;
    this.memory = Buffer.alloc(24 + 8 * slots);
    this.file = null;
    this.path = path.join(directory, `${process.pid}.tally`);
    this.runs = 0;
    this.timer = null;
    this.least = slots;
    this.most = -1;
  }

  note(number) {
    const now = nowNs();
    if (this.runs === 0) this.memory.writeBigInt64LE(now, 8);
    this.runs += 1;
    this.memory.writeBigInt64LE(BigInt(this.runs), 0);
    this.memory.writeBigInt64LE(now, 16);
    if (number < this.slots) {
      this.memory.writeBigInt64LE(now, 24 + 8 * number);
      this.least = Math.min(this.least, number);
      this.most = Math.max(this.most, number);
    }
    if (this.timer === null) this.timer = setTimeout(() => this.write(), 1);
  }

  /** Writes the slots before the head, so that a reader of the count finds the times. */
  write() {
    this.timer = null;
    if (this.file === null) {
      fs.writeFileSync(this.path, this.memory);
      this.file = fs.openSync(this.path, "r+");
    }
    if (this.most >= this.least) {
      const from = 24 + 8 * this.least;
      fs.writeSync(this.file, this.memory, from, 8 * (this.most - this.least + 1), from);
    }
    fs.writeSync(this.file, this.memory, 0, 24, 0);
    this.least = this.slots;
    this.most = -1;
  }
}

let tally = null;
if (verb === "work") {
  tally = new Tally(process.env.CHANCY_BENCH_TALLY, Number(process.env.CHANCY_BENCH_SLOTS));
}

async function graphileWorker() {
  const { run, makeWorkerUtils, Logger } = require("graphile-worker");
  const logger = new Logger(() => () => {});
  // The workload, as in peer.py; its queues are identifiers.
  const { queues = 1, priorities = 1, bytes = 0, sleep_ms = 0, later = 0 } = settings;
  const text = bytes ? { text: "x".repeat(bytes) } : {};
  const job = async (payload) => {
    tally.note(payload.number);
    if (sleep_ms) await rest(sleep_ms);
  };
  if (verb === "work") {
    return {
      work: () =>
        run({
          taskList: Object.fromEntries(numbersFrom(0, queues).map((n) => [`noop ${n}`, job])),
          preset: {
            worker: {
              connectionString: dsn,
              concurrentJobs: settings.concurrentJobs,
              maxPoolSize: SESSIONS,
              pollInterval: 1000,
              logger,
              // With a local queue, jobs of one named queue run at the same time.
              ...(settings.keys ? {} : { localQueue: { size: settings.localQueue } }),
              completeJobBatchDelay: settings.batchDelay,
              failJobBatchDelay: settings.batchDelay,
            },
          },
        }),
    };
  }
  const client = await makeWorkerUtils({ connectionString: dsn, maxPoolSize: SESSIONS, logger });
  return {
    setUp: () => client.migrate(),
    push: (number) => client.addJob("noop 0", { number }),
    pushMany: (found) =>
      client.addJobs(
        found.map((number) => ({
          identifier: `noop ${number % queues}`,
          payload: { number, ...text },
          ...(priorities > 1 ? { priority: number % priorities } : {}),
          ...(later ? { runAt: new Date(Date.now() + 86_400_000) } : {}),
          ...(settings.keys ? { queueName: `key ${number % settings.keys}` } : {}),
        })),
      ),
  };
}

async function pgBoss() {
  const { PgBoss } = require("pg-boss");
  const boss = new PgBoss({ connectionString: dsn, max: SESSIONS });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  return {
    setUp: () => boss.createQueue("noop"),
    push: (number) => boss.send("noop", { number }),
    pushMany: (found) => boss.insert("noop", found.map((number) => ({ data: { number } }))),
    work: () =>
      boss.work(
        "noop",
        { batchSize: settings.batch, pollingIntervalSeconds: settings.poll },
        async (jobs) => {
          for (const job of jobs) tally.note(job.data.number);
        },
      ),
  };
}

async function single(peer, jobs) {
  const took = [];
  const began = performance.now();
  for (let number = 0; number < jobs; number++) {
    const at = performance.now();
    await peer.push(number);
    took.push(Math.round((performance.now() - at) * 1e6));
  }
  return { seconds: (performance.now() - began) / 1e3, took_ns: took };
}

async function tasks(peer, jobs, count) {
  const began = performance.now();
  let next = 0;
  const push = async () => {
    while (next < jobs) await peer.push(next++);
  };
  await Promise.all(numbersFrom(0, count).map(push));
  return { seconds: (performance.now() - began) / 1e3 };
}

async function bulk(peer, jobs, call) {
  const began_ns = Number(nowNs());
  const began = performance.now();
  for (let first = 0; first < jobs; first += call) {
    await peer.pushMany(numbersFrom(first, Math.min(jobs, first + call)));
  }
  return { seconds: (performance.now() - began) / 1e3, began_ns };
}

async function paced(peer, jobs, seconds) {
  const called_ns = [];
  const returned_ns = [];
  for (let number = 0; number < jobs; number++) {
    await rest(1e3 * seconds);
    called_ns.push(Number(nowNs()));
    await peer.push(number);
    returned_ns.push(Number(nowNs()));
  }
  return { called_ns, returned_ns, pushed: 3 + jobs };
}

async function offered(peer, jobs, rate) {
  const [due_ns, called_ns, returned_ns] = [0, 0, 0].map(() => new Array(jobs).fill(0));
  const send = async (number) => {
    called_ns[number] = Number(nowNs());
    await peer.push(number);
    returned_ns[number] = Number(nowNs());
  };
  const first = Number(nowNs()) + 1e8;
  const sends = [];
  for (let number = 0; number < jobs; number++) {
    due_ns[number] = Math.round(first + (1e9 * number) / rate);
    const early = due_ns[number] - Number(nowNs());
    if (early > 0) await rest(early / 1e6);
    else if (number % 64 === 63) await new Promise(setImmediate);
    sends.push(send(number));
  }
  await Promise.all(sends);
  return { due_ns, called_ns, returned_ns, pushed: 10 + jobs };
}

/** Runs the uncounted pushes of a role, and then the role. */
const ROLES = {
  setup: [0, (peer) => peer.setUp().then(() => ({}))],
  single: [3, single],
  tasks: [10, tasks],
  bulk: [null, bulk],
  paced: [3, paced],
  offered: [10, offered],
  work: [0, null],
};

async function main() {
  const [warm, role] = ROLES[verb];
  const peer = await { "graphile-worker": graphileWorker, "pg-boss": pgBoss }[system]();
  if (verb === "work") {
    process.stdin.on("end", () => process.exit(0)).resume();
    await peer.work();
    fs.writeFileSync(path.join(process.env.CHANCY_BENCH_TALLY, "ready"), "");
    return;
  }
  const given = numbers.map(Number);
  await Promise.all(numbersFrom(0, warm ?? given[2]).map(() => peer.push(UNCOUNTED)));
  fs.writeSync(1, `\n${JSON.stringify(await role(peer, ...given))}\n`);
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
