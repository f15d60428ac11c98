export * from './sidecar.cjs';
