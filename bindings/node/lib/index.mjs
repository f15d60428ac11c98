// The same objects as for require(): there is one table of locks per process.

import tenure from './index.cjs';

export const {
  Busy,
  Client,
  Denied,
  Guard,
  Guards,
  InvalidInput,
  Lost,
  Refused,
  TenureError,
  TimedOut,
  Unavailable,
  Unsupported,
  ask,
  breakHold,
  capabilities,
  inspect,
  list,
  lock,
  lockAll,
  session,
  watch,
  withLock,
} = tenure;

export default tenure;
