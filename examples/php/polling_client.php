<?php
// The protocol by polling, without a library: acquire, poll until granted, renew, check the fence, release.
// clients/php/Tenure.php does this for you.
//
// Run it beside a daemon (`tenure serve`). It prints:
//
//     A holds vol:/poll/file
//     B is queued behind A
//     A releases
//     B was granted: listOwnerLocks shows the path
//     B renewed its lease
//     the fence of B is current
//     an operator ends B: isOwnerAlive is false

declare(strict_types=1);

function call(string $rpc, array $request): array
{
    static $curl = null;
    $curl ??= curl_init();
    curl_setopt_array($curl, [
        CURLOPT_URL => (getenv('TENURE_WEB_URL') ?: 'http://127.0.0.1:8443') . "/v1/$rpc",
        CURLOPT_POSTFIELDS => json_encode((object) $request),
        CURLOPT_HTTPHEADER => ['content-type: application/json'],
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 35,
    ]);
    $text = curl_exec($curl);
    $status = curl_getinfo($curl, CURLINFO_RESPONSE_CODE);
    if ($status !== 200) {
        throw new RuntimeException("$rpc: HTTP $status " . ($text ?: curl_error($curl)));
    }
    return json_decode($text, true, flags: JSON_THROW_ON_ERROR);
}

const OK = 0;
const QUEUED = 3;
const PATH = 'vol:/poll/file';

function acquire(string $owner): array
{
    return call('acquire', ['ownerId' => $owner, 'ttlMs' => 30_000, 'queueTtlMs' => 10_000, 'requests' => [['path' => PATH]]]);
}

function must(bool $isTrue): void
{
    if (!$isTrue) {
        throw new RuntimeException('not as expected');
    }
}

must(acquire('poll-A')['status'] === OK);
echo 'A holds ', PATH, "\n";
must(acquire('poll-B')['status'] === QUEUED);
echo "B is queued behind A\n";
call('release', ['ownerId' => 'poll-A', 'requests' => [['path' => PATH]]]);
echo "A releases\n";

// A queued owner is alive; it is not if its place in the queue has ended.
while (!in_array(PATH, array_column(call('listOwnerLocks', ['ownerId' => 'poll-B'])['locks'], 'path'), true)) {
    must(call('isOwnerAlive', ['ownerId' => 'poll-B'])['alive']);
    usleep(100_000);
}
echo "B was granted: listOwnerLocks shows the path\n";
// The same request again gives the fence.
$fence = acquire('poll-B')['fencingToken'];

must(call('renew', ['ownerId' => 'poll-B', 'ttlMs' => 30_000])['status'] === OK);
echo "B renewed its lease\n";
must(call('assertFencing', ['ownerId' => 'poll-B', 'fencingToken' => $fence, 'paths' => [PATH]])['status'] === OK);
echo "the fence of B is current\n";

call('forceRelease', ['victimId' => 'poll-B']);
must(!call('isOwnerAlive', ['ownerId' => 'poll-B'])['alive']);
echo "an operator ends B: isOwnerAlive is false\n";
