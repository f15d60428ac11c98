import tus from './tus.cjs';

export const { DaemonLocker, UploadFileLocker } = tus;
