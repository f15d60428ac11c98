// The types for require().

import tenure = require('tenure');
import sidecar = require('tenure/sidecar');

export async function main(): Promise<number | undefined> {
  const guard: tenure.Guard = await tenure.lock('vol:/a');
  sidecar.createSidecarLockManager('x').reset();
  return guard.fence;
}
