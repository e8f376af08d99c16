// An app in Node that follows updates and answers what is asked: node follower.mjs SOCKET PROTOS
//
// Goes on with its resume token whenever it loses its stream. Told `leave` on its input it ends its stream, told `answer` it
// follows again, if it has left, and answers every question that it knows of and will see. Says what it sees, a JSON object
// a line.
import { createInterface } from 'node:readline';
import { join } from 'node:path';
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const [socket, protos] = process.argv.slice(2);
const say = line => process.stdout.write(`${JSON.stringify(line)}\n`);
const files = ['update', 'elicitation'].map(name => join(protos, `mcpsidecar/v1/${name}.proto`));
const shape = { includeDirs: [protos], keepCase: true, longs: String, enums: String, oneofs: true, defaults: true };
const { v1 } = grpc.loadPackageDefinition(loader.loadSync(files, shape)).mcpsidecar;
const address = `unix:${socket}`;
const options = {
  'grpc.default_authority': 'localhost',
  'grpc.initial_reconnect_backoff_ms': 50,
  'grpc.max_reconnect_backoff_ms': 500,
};
const updates = new v1.UpdateService(address, grpc.credentials.createInsecure(), options);
const elicitations = new v1.ElicitationService(address, grpc.credentials.createInsecure(), options);

let token = '';
let stream;
let answering = false;
// Questions that wait for this app's answer.
const open = new Set();

const answer = id => {
  open.delete(id);
  const request = { elicitation_id: id, action: 'ELICITATION_ACTION_ACCEPT', content_json: '{"name":"Ada"}' };
  elicitations.RespondElicitation(request, { deadline: Date.now() + 20_000 }, (error, answered) => {
    if (error) say({ refused: id, code: grpc.status[error.code], reason: error.details });
    else say({ answered: id, state: answered.elicitation.state });
  });
};

const see = ({ server, elicitation, call }) => {
  if (call) say({ call: call.id, state: call.state });
  if (!elicitation) return;
  const { id, state, message } = elicitation;
  say({ question: id, state, message });
  if (state !== 'ELICITATION_STATE_PENDING') return;
  open.add(id);
  if (answering) answer(id);
};

const follow = () => {
  const resumed = token !== '';
  const mine = updates.StreamUpdates({ resume_token: token }, { waitForReady: true });
  stream = mine;
  // The daemon answers before it has anything to tell.
  mine.on('metadata', () => {
    if (resumed && stream === mine) say({ resumed: true });
  });
  mine.on('data', update => {
    if (stream !== mine) return;
    if (update.resume_token) token = update.resume_token;
    if (update.upsert) see(update.upsert);
    if (update.snapshot_end) say({ following: true });
  });
  mine.on('error', error => {
    if (stream !== mine) return;
    if (error.code !== grpc.status.UNAVAILABLE && error.code !== grpc.status.INTERNAL) throw error;
    say({ lost: grpc.status[error.code] });
    setTimeout(follow, 50);
  });
};

follow();
for await (const told of createInterface({ input: process.stdin })) {
  if (told === 'leave') {
    const left = stream;
    stream = undefined;
    left.cancel();
    say({ left: true });
  } else if (told === 'answer') {
    answering = true;
    if (stream === undefined) follow();
    for (const id of [...open]) answer(id);
  }
}
process.exit(0);
