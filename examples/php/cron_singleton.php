<?php
// A cron job that runs on one machine at a time: start it everywhere, the others end at once.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//     first run: working
//     second run: nightly runs already, nothing to do
//     first run: done
//     third run: working
//     third run: done

declare(strict_types=1);

require __DIR__ . '/../../clients/php/Tenure.php';

$client = new Tenure\Client(getenv('TENURE_WEB_URL') ?: 'http://127.0.0.1:8443');

/** Runs the work under the lock of its name; returns false if another machine runs it. */
function singleton(Tenure\Client $client, string $name, callable $work): bool
{
    try {
        $guard = $client->lock("cron:/jobs/$name", purpose: $name);
    } catch (Tenure\Busy) {
        return false;
    }
    try {
        // Long work calls $guard->keep() in its loop, and ends with Tenure\Lost if another machine may begin.
        $work($guard);
    } finally {
        $guard->release();
    }
    return true;
}

singleton($client, 'nightly', function (Tenure\Guard $guard) use ($client) {
    echo "first run: working\n";
    $guard->keep();
    if (!singleton($client, 'nightly', fn () => print("never printed\n"))) {
        echo "second run: nightly runs already, nothing to do\n";
    }
    echo "first run: done\n";
});
singleton($client, 'nightly', fn () => print("third run: working\nthird run: done\n"));
