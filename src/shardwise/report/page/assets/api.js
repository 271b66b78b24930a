// The server's answers. Every refusal becomes an Error with the server's own sentence and its faults.

export class Refusal extends Error {
  constructor(message, faults = [], status = 0) {
    super(message);
    this.faults = faults;
    this.status = status;
  }
}

async function ask(path, body, options = {}) {
  const init =
    body === undefined
      ? {}
      : {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: typeof body === "string" ? body : JSON.stringify(body),
        };
  let reply;
  try {
    reply = await fetch(path, { ...init, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the server does not answer; is `shardwise serve` still running?");
  }
  if (!reply.ok) throw await refusalOf(reply);
  return reply;
}

async function refusalOf(reply) {
  try {
    const { error } = await reply.json();
    return new Refusal(error.message, error.faults || [], reply.status);
  } catch {
    return new Refusal(`the server answered ${reply.status}`, [], reply.status);
  }
}

const json = async (path, body, options) => (await ask(path, body, options)).json();

export const catalog = () => json("/api/catalog");
export const readModel = text => json("/api/model", text);
export const firstAnswer = () => json("/api/first");
export const stepOf = body => json("/api/step", body);
export const readScript = body => json("/api/script", body);
export const viewOf = body => json("/api/view", body);
export const whyNot = body => json("/api/why", body);
export const exportTo = body => json("/api/export", body);
export const stopPlan = id => json(`/api/plan/${encodeURIComponent(id)}/stop`, {});
export const report = async plans => (await ask("/api/report", { plans })).text();

/** Run a search; `heard(event, data)` is called for every event of the stream. */
export async function plan(question, heard, signal) {
  const reply = await ask("/api/plan", question, { signal });
  const reader = reply.body.getReader(),
    decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const blocks = text.split(/\r?\n\r?\n/);
    text = blocks.pop();
    for (const block of blocks) hear(block, heard);
  }
}

function hear(block, heard) {
  let event = "message";
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trim());
  }
  if (data.length) heard(event, JSON.parse(data.join("\n")));
}
