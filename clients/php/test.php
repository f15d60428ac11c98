<?php
// Tests of Tenure.php with a real daemon: php test.php. Takes ../../target/debug/tenure, or $TENURE_BIN.

declare(strict_types=1);

require __DIR__ . '/Tenure.php';
require __DIR__ . '/test_daemon.php';

use Tenure\Client;

function must(bool $isTrue, string $what): void
{
    if (!$isTrue) {
        fwrite(STDERR, "FAILED: $what\n");
        exit(1);
    }
    echo "ok: $what\n";
}

/** Returns the exception that the call throws. */
function thrown(callable $call): ?Throwable
{
    try {
        $call();
        return null;
    } catch (Tenure\Error $error) {
        return $error;
    }
}

$daemon = new TestDaemon();
$client = new Client($daemon->web);

$first = $client->lock('vol:/a', purpose: 'resize');
must($first->fence > 0 && $first->validFor() > 20, 'a lock has a fence and a lease');
$busy = thrown(fn () => $client->lock('vol:/a/b'));
must($busy instanceof Tenure\Busy && $busy->owner === $first->owner && $busy->blocker['holder']['purpose'] === 'resize', 'a refusal names the holder: ' . $busy?->getMessage());
$late = thrown(fn () => $client->lock('vol:/a', wait: 0.3, owner: 'late'));
must($late instanceof Tenure\TimedOut, 'a wait ends with its limit');
must($client->call('isOwnerAlive', ['ownerId' => 'late'])['alive'] === false, 'and leaves no queue entry');
$first->check();
$first->release();
must(thrown(fn () => $first->renew()) instanceof Tenure\Lost, 'a released guard is not renewed');
$second = $client->lock('vol:/a');
must($second->fence > $first->fence, 'fences rise');
$second->release();

$shared = [$client->lock('vol:/s', mode: Client::SHARED), $client->lock('vol:/s', mode: Client::SHARED)];
must(thrown(fn () => $client->lock('vol:/s')) instanceof Tenure\Busy, 'shared locks exclude a writer');
array_map(fn ($guard) => $guard->release(), $shared);

// A waiter in another process gets the lock after this one has released it.
$held = $client->lock('vol:/w');
$waiter = proc_open(['php', '-r', 'require "Tenure.php"; $c = new Tenure\Client($argv[1]); $g = $c->lock("vol:/w", wait: 30, ask: true); echo "fence ", $g->fence, "\n"; $g->release();', $daemon->web], [1 => ['pipe', 'w']], $pipes, __DIR__);
while (!$held->releaseRequested) {
    $held->renew();
    usleep(20_000);
}
$held->release();
$said = stream_get_contents($pipes[1]);
must(proc_close($waiter) === 0 && sscanf($said, 'fence %d')[0] > $held->fence, 'a waiter asks the holder and gets the lock');

$short = $client->lock('vol:/short', ttl: 1);
for ($end = Client::now() + 2.5; Client::now() < $end; usleep(50_000)) {
    $short->keep();
}
$short->check();
must(true, 'keep() holds a lock over several leases');
$client->call('forceRelease', ['victimId' => $short->owner, 'idempotencyKey' => 'test']);
must(thrown(fn () => $short->renew()) instanceof Tenure\Lost, 'a lock that an operator ended is lost');
$paused = $client->lock('vol:/paused', ttl: 0.5);
usleep(450_000);
must(thrown(fn () => $paused->keep()) instanceof Tenure\Lost, 'a lease that was not renewed in time is lost');

$survivor = $client->lock('vol:/survivor', ttl: 20);
$daemon->restart();
$survivor->renew();
$survivor->check();
must(true, 'a lock survives a restart of the daemon');
$survivor->release();

must(thrown(fn () => (new Client('http://127.0.0.1:1', timeout: 0.3))->lock('vol:/a')) instanceof Tenure\Unreachable, 'an unreachable daemon is reported');
$both = new Client('http://127.0.0.1:1,' . $daemon->web);
$both->lock('vol:/failover')->release();
must(true, 'another node is tried');
must(thrown(fn () => $client->lock('nonsense')) instanceof Tenure\Refused, 'bad input is refused');
must(thrown(fn () => new Client('http://10.0.0.1:8443', token: 'secret')) instanceof Tenure\Error, 'a token does not leave the machine in clear');

$guarded = new TestDaemon(['TENURE_CLIENT_AUTH_TOKEN' => str_repeat('secret', 6)]);
must(thrown(fn () => (new Client($guarded->web))->lock('vol:/a')) instanceof Tenure\Denied, 'a call without the token is denied');
(new Client($guarded->web, token: str_repeat('secret', 6)))->lock('vol:/a')->release();
must(true, 'a call with the token is served');
echo "all passed\n";
