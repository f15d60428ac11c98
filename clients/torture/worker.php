<?php
// A worker that uses the PHP client.

declare(strict_types=1);

require __DIR__ . '/../php/Tenure.php';

$client = new Tenure\Client((string) getenv('TENURE_WEB_URLS'));
while (true) {
    try {
        $guard = $client->lock('vol:/torture/counter', wait: 20, ttl: 2);
        $guard->check();
        passthru('sh ' . escapeshellarg(__DIR__ . '/step.sh') . " $guard->fence php");
        $guard->release();
    } catch (Tenure\Error $error) {
        fwrite(STDERR, $error->getMessage() . "\n");
    }
}
