import sidecar from './sidecar.cjs';

export const { createSidecarLockManager, withSidecarLock } = sidecar;
