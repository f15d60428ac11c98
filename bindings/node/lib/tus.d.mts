export * from './tus.cjs';
