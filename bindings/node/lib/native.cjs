'use strict';

// Loads the native add-on.

const path = require('node:path');

const name = `tenure.${process.platform}-${process.arch}.node`;

function load() {
  const file = process.env.TENURE_NATIVE || path.join(__dirname, '..', name);
  try {
    return require(file);
  } catch (cause) {
    throw new Error(
      `tenure: cannot load ${file}: ${cause.message}. ` +
        'There is no prebuilt add-on for this platform: build it in the repository with ' +
        '`npm run build` (needs cargo), or set TENURE_NATIVE to its path.',
      { cause },
    );
  }
}

module.exports = load();
