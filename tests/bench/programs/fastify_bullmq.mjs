// Node: fastify, standardwebhooks and BullMQ, which deduplicates by the job's id for as long as it keeps the job.
import Fastify from "fastify";
import { Queue } from "bullmq";
import { Webhook } from "standardwebhooks";

const RETENTION = 7 * 86_400;

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const { hostname, port } = new URL(process.env.REDIS_URL);
const queue = new Queue("events", {
  // Commands of one turn of the event loop leave in one write instead of one each.
  connection: { host: hostname, port: Number(port), enableAutoPipelining: true },
  defaultJobOptions: { removeOnComplete: { age: RETENTION } },
});

const app = Fastify({ bodyLimit: 65_536 });
app.addContentTypeParser("application/json", { parseAs: "string" }, (request, body, done) => done(null, body));

app.post("/webhooks", async (request, reply) => {
  let event;
  try {
    event = webhook.verify(request.body, request.headers);
  } catch {
    return reply.code(401).send();
  }
  await queue.add(event.eventType, event, { jobId: request.headers["webhook-id"] });
  return reply.code(202).send();
});

await app.listen({ host: "127.0.0.1", port: Number(process.env.PORT) });
