<?php
// Leader election: the holder of the lock leads and renews; when it dies, the next candidate leads with a larger fence.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//     one leads
//     two waits
//     one dies without a release
//     two leads, with a larger fence

declare(strict_types=1);

require __DIR__ . '/../../clients/php/Tenure.php';

const PATH = 'election:/service/leader';
$url = getenv('TENURE_WEB_URL') ?: 'http://127.0.0.1:8443';
$client = new Tenure\Client($url);

if (($argv[1] ?? '') === 'lead') {
    // The first candidate, in a process of its own: it leads until it is killed.
    $guard = $client->lock(PATH, wait: 30, ttl: 2, purpose: 'one');
    echo $guard->fence, "\n";
    while (true) {
        $guard->keep();
        usleep(100_000);
    }
}

$one = proc_open([PHP_BINARY, __FILE__, 'lead'], [1 => ['pipe', 'w']], $pipes);
$fence = (int) fgets($pipes[1]);
echo "one leads\n";
try {
    $client->lock(PATH, wait: 0.5, ttl: 2);
    exit(1);
} catch (Tenure\TimedOut) {
    echo "two waits\n";
}
proc_terminate($one, 9);
echo "one dies without a release\n";
// Its lease ends, and the daemon grants the next in the queue.
$two = $client->lock(PATH, wait: 30, ttl: 2, purpose: 'two');
if ($two->fence > $fence) {
    echo "two leads, with a larger fence\n";
}
$two->release();
