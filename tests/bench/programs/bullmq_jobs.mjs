// BullMQ: each job fetches its event's details over kept connections. `node bullmq_jobs.mjs fill` enqueues.
import { Queue, Worker } from "bullmq";
import { Pool } from "undici";

const BLOCK = 1_000;

const { hostname, port } = new URL(process.env.REDIS_URL);
// Commands of one turn of the event loop leave in one write instead of one each.
const connection = { host: hostname, port: Number(port), enableAutoPipelining: true, maxRetriesPerRequest: null };

async function fill() {
  const queue = new Queue("events", { connection });
  const events = Number(process.env.EVENTS);
  for (let start = 0; start < events; start += BLOCK) {
    const ids = Array.from({ length: Math.min(BLOCK, events - start) }, (_, place) => eventId(start + place));
    await queue.addBulk(ids.map((id) => ({ name: "handle", data: { id }, opts: { jobId: id } })));
  }
  await queue.close();
}

const eventId = (number) => `iss_${number.toString(16).padStart(24, "0")}`;

function work() {
  const slots = Number(process.env.SLOTS);
  // The client that Node's own fetch is made of, without what fetch puts around it, which is three quarters of its time.
  const pool = new Pool(process.env.API_URL, { connections: slots, bodyTimeout: 10_000, headersTimeout: 10_000 });
  const headers = { authorization: "Bearer token" };

  async function handle(job) {
    const answer = await pool.request({ method: "GET", path: `/me-creds/api/credentials/${job.data.id}`, headers });
    const text = await answer.body.text();
    if (answer.statusCode !== 200) throw new Error(`status ${answer.statusCode}`);
    JSON.parse(text);
  }

  const worker = new Worker("events", handle, { connection, concurrency: slots, removeOnComplete: { count: 0 } });
  worker.on("error", (error) => console.error(error));
  process.once("SIGTERM", () => process.exit());
}

if (process.argv[2] === "fill") await fill();
else work();
