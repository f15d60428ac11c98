// A real @tus/server: `tus-server.mjs DIRECTORY files|daemon` prints its port.

import { FileStore } from '@tus/file-store';
import { Server } from '@tus/server';
import { DaemonLocker, UploadFileLocker } from 'tenure/tus';

const [directory, kind] = process.argv.slice(2);
const server = new Server({
  path: '/files',
  // How long a request may go on after another one asked for its lock. Default: 3 s.
  lockDrainTimeout: 100,
  datastore: new FileStore({ directory }),
  locker: kind === 'files' ? new UploadFileLocker({ directory }) : new DaemonLocker({ prefix: `tus:/${process.ppid}` }),
});
const listener = server.listen({ host: '127.0.0.1', port: 0 }, () => console.log(listener.address().port));
process.stdin.resume().once('end', () => process.exit(0));
