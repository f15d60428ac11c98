<?php
// A client of the Tenure daemon for PHP: one file, the curl extension, polling.
//
//     require 'Tenure.php';
//     $client = new Tenure\Client('http://127.0.0.1:8443');
//     $guard = $client->lock('vol:/a/b', wait: 30, purpose: 'resize');
//     foreach ($parts as $part) {
//         $guard->keep();                 // renews when it is time; throws Tenure\Lost
//         work($part, $guard->fence);
//     }
//     $guard->release();
//
// PHP has no background thread, so the program renews: call keep() more often than every ttl / 2.

declare(strict_types=1);

namespace Tenure;

/** What every exception of this file is. */
class Error extends \RuntimeException {}

/** The lock is held and the call did not wait. */
class Busy extends Error
{
    public function __construct(
        string $message,
        public readonly string $path,
        public readonly string $owner,
        /** The daemon's description of the blocker, as decoded JSON; null if there is none. */
        public readonly ?array $blocker,
    ) {
        parent::__construct($message);
    }
}

/** The lock was still held when the time limit ended. */
class TimedOut extends Busy {}

/** The lock is no longer held: stop the work. */
class Lost extends Error {}

/** The daemon does not know the caller, or does not permit the call. */
class Denied extends Error {}

/** No node answered in time. */
class Unreachable extends Error {}

/** The daemon refused the call; `status` is the name of the gRPC code. */
class Refused extends Error
{
    public function __construct(string $message, public readonly string $status)
    {
        parent::__construct($message);
    }
}

final class Client
{
    /** Modes of a lock. */
    public const EXCLUSIVE = 0;
    public const SHARED = 1;
    public const SHARED_TREE = 2;

    private const OK = 0;
    private const CONFLICT = 1;
    private const LOST = 2;
    private const QUEUED = 3;

    /** @var string[] */
    private array $nodes;
    private ?\CurlHandle $curl = null;

    /**
     * @param string $urls one or more nodes, separated by commas: http://host:8443,https://other:8443
     * @param ?string $token an API key
     * @param ?string $authority a file with the certificate authority of the daemon
     * @param float $timeout seconds for one call, retries included
     */
    public function __construct(
        string $urls,
        private readonly ?string $token = null,
        private readonly ?string $authority = null,
        private readonly float $timeout = 10,
    ) {
        $this->nodes = array_map(fn (string $url) => rtrim(trim($url), '/'), explode(',', $urls));
        foreach ($this->nodes as $node) {
            if (!preg_match('#^https?://[^/]+$#', $node)) {
                throw new Error("\"$node\" is no address: write http://host:8443");
            }
            $host = trim((string) parse_url($node, PHP_URL_HOST), '[]');
            $isLocal = $host === 'localhost' || $host === '::1' || str_starts_with($host, '127.');
            if ($token !== null && !str_starts_with($node, 'https://') && !$isLocal) {
                throw new Error("$node is another machine, and the token would be sent to it without encryption: write https://");
            }
        }
        shuffle($this->nodes);
    }

    /**
     * Acquires a path. It waits in the daemon's queue for at most `wait` seconds; 0 does not wait.
     *
     * @param int $permits for a semaphore: the number of its permits
     * @param float $ttl seconds of the lease
     */
    public function lock(
        string $path,
        float $wait = 0,
        int $mode = self::EXCLUSIVE,
        int $permits = 0,
        float $ttl = 30,
        string $purpose = '',
        bool $ask = false,
        ?string $owner = null,
    ): Guard {
        $owner ??= 'php-' . bin2hex(random_bytes(16));
        $until = self::now() + $wait;
        $asks = 0;
        while (true) {
            $asks++;
            $request = [
                'ownerId' => $owner,
                'ttlMs' => (int) round($ttl * 1000),
                'requests' => [['path' => $path, 'mode' => $mode, 'permits' => $permits]],
                'idempotencyKey' => bin2hex(random_bytes(16)),
                // The place in the queue must not outlive this process by much: it is sent again with each poll.
                'queueTtlMs' => 10_000,
                'noWait' => $wait <= 0,
                'ask' => $ask,
                'holder' => ['name' => basename($_SERVER['argv'][0] ?? 'php'), 'host' => (string) gethostname(), 'pid' => (int) getmypid(), 'purpose' => $purpose],
            ];
            // The lease counts from the first sending: any of the tries may be the one that was applied.
            $sent = self::now();
            try {
                $answer = $this->call('acquire', $request);
            } catch (Refused | Denied $refused) {
                throw $refused;
            } catch (Error $error) {
                $this->withdraw($owner, $path, $mode);
                throw $error;
            }
            $status = $answer['status'];
            if ($status === self::OK && self::now() < $sent + 0.8 * $ttl) {
                if ($permits > 0 && $answer['fencingToken'] > 0) {
                    $this->withdraw($owner, $path, $mode);
                    throw new Refused("$path: this namespace is no semaphore; `tenure policy set NAMESPACE semaphore` makes it one", 'INVALID_ARGUMENT');
                }
                return new Guard($this, $owner, $path, $mode, $ttl, $answer['namespace'], $answer['fencingToken'], $sent);
            }
            if ($status === self::CONFLICT) {
                if ($asks > 1) {
                    $this->withdraw($owner, $path, $mode);
                }
                throw new Busy(self::words($answer), $answer['path'], $answer['owner'], $answer['blocker']);
            }
            if ($status === self::QUEUED) {
                if (self::now() >= $until) {
                    $this->withdraw($owner, $path, $mode);
                    throw new TimedOut('timed out: ' . self::words($answer), $answer['path'], $answer['owner'], $answer['blocker']);
                }
                $pause = min(0.1 + 0.2 * lcg_value(), max(0.0, $until - self::now()));
                usleep((int) ($pause * 1_000_000));
            } elseif ($asks > 5) {
                $this->withdraw($owner, $path, $mode);
                throw new Lost("$path: answers take longer than the lease of $ttl s: take a longer ttl");
            }
        }
    }

    /**
     * Makes any call of the protocol, for example call('explain', ['path' => 'vol:/a']). It is repeated on
     * another node after a failure; a call with an effect needs an `idempotencyKey` for that.
     *
     * @return array the answer
     */
    public function call(string $rpc, array $request): array
    {
        $until = self::now() + $this->timeout;
        $body = json_encode((object) $request, JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES);
        $pause = 0.02;
        while (true) {
            [$status, $text, $trouble] = $this->post("/v1/$rpc", $body, min(4.0, max(0.1, $until - self::now())));
            $answer = json_decode($text, true);
            if ($status === 200 && is_array($answer)) {
                return $answer;
            }
            $code = $answer['error']['code'] ?? '';
            $message = $answer['error']['message'] ?? ($trouble ?: "HTTP $status");
            if ($status === 401 || $status === 403) {
                throw new Denied($message);
            }
            $mayPass = $status === 0 || in_array($code, ['UNAVAILABLE', 'ABORTED', 'DEADLINE_EXCEEDED', 'CANCELLED'], true);
            if (!$mayPass) {
                throw new Refused($message, $code ?: 'UNKNOWN');
            }
            // The next try goes to another node.
            $this->nodes[] = array_shift($this->nodes);
            if (self::now() + $pause >= $until) {
                throw new Unreachable("no node answered in time: $message");
            }
            usleep((int) ($pause * 1_000_000 * (0.5 + lcg_value())));
            $pause = min($pause * 2, 0.5);
        }
    }

    /** Seconds on a clock that never goes back. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    /** Cancels a queue entry, and a grant that crosses it. Without an answer both end by their time limits. */
    private function withdraw(string $owner, string $path, int $mode): void
    {
        try {
            $this->call('release', ['ownerId' => $owner, 'requests' => [['path' => $path, 'mode' => $mode]], 'idempotencyKey' => bin2hex(random_bytes(16))]);
        } catch (Error) {
        }
    }

    private static function words(array $answer): string
    {
        $blocker = $answer['blocker'] ?? null;
        $name = $blocker['holder']['name'] ?? '';
        $who = $name !== '' ? "$name ({$answer['owner']})" : $answer['owner'];
        $since = $blocker ? sprintf(' for %.1f s, %.1f s of its lease left', $blocker['heldMs'] / 1000, $blocker['leaseLeftMs'] / 1000) : '';
        return "{$answer['path']}: held by $who$since";
    }

    /** @return array{int, string, string} status (0: no answer), body, trouble */
    private function post(string $path, string $body, float $limit): array
    {
        // One handle for all calls: it keeps the connection open.
        $this->curl ??= curl_init();
        $headers = ['content-type: application/json'];
        if ($this->token !== null) {
            $headers[] = "authorization: Bearer {$this->token}";
        }
        curl_setopt_array($this->curl, [
            CURLOPT_URL => $this->nodes[0] . $path,
            CURLOPT_POSTFIELDS => $body,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_CONNECTTIMEOUT_MS => 2000,
            CURLOPT_TIMEOUT_MS => (int) ($limit * 1000),
        ]);
        if ($this->authority !== null) {
            curl_setopt($this->curl, CURLOPT_CAINFO, $this->authority);
        }
        $text = curl_exec($this->curl);
        if ($text === false) {
            return [0, '', curl_error($this->curl)];
        }
        return [curl_getinfo($this->curl, CURLINFO_RESPONSE_CODE), $text, ''];
    }
}

/** A held lock. Its lease counts from the sending of the last renewal; four fifths of it may be used. */
final class Guard
{
    /** Whether another client has asked for a release. */
    public bool $releaseRequested = false;
    private ?string $end = null;

    public function __construct(
        private readonly Client $client,
        public readonly string $owner,
        public readonly string $path,
        private readonly int $mode,
        private readonly float $ttl,
        private readonly string $namespace,
        /** Grows with every grant of the path; 0 for shared locks and permits. A store that refuses smaller ones is safe from a paused writer. */
        public readonly int $fence,
        private float $sent,
    ) {}

    /** Seconds for which the work may go on without a renewal. */
    public function validFor(): float
    {
        return $this->end !== null ? 0.0 : max(0.0, $this->sent + 0.8 * $this->ttl - Client::now());
    }

    /** Renews the lease if a third of it has passed. Throws Lost if the lock is no longer held. */
    public function keep(): void
    {
        if ($this->end === null && Client::now() < $this->sent + $this->ttl / 3) {
            return;
        }
        $this->renew();
    }

    /** Renews the lease. */
    public function renew(): void
    {
        $this->mustHold();
        $sent = Client::now();
        try {
            $answer = $this->client->call('renew', ['ownerId' => $this->owner, 'ttlMs' => (int) round($this->ttl * 1000), 'domains' => [$this->namespace]]);
        } catch (Unreachable $unreachable) {
            // The lease may still run: the next call tries again.
            $this->mustHold();
            return;
        }
        if ($answer['status'] !== 0) {
            $this->end = 'the daemon ended it';
        } else {
            $this->sent = $sent;
            $this->releaseRequested = $this->releaseRequested || $answer['revokeRequested'];
        }
        $this->mustHold();
    }

    /** Asks the daemon whether the lock is still held, at its fence. */
    public function check(): void
    {
        $this->mustHold();
        if ($this->fence > 0) {
            $answer = $this->client->call('assertFencing', ['ownerId' => $this->owner, 'fencingToken' => $this->fence, 'paths' => [$this->path]]);
            $isHeld = $answer['status'] === 0;
        } else {
            $listed = $this->client->call('listOwnerLocks', ['ownerId' => $this->owner, 'readTree' => true]);
            $isHeld = in_array($this->path, array_column($listed['locks'], 'path'), true);
        }
        if (!$isHeld) {
            $this->end = 'the daemon ended it';
        }
        $this->mustHold();
    }

    /** Releases the lock. Throws Lost if it was lost before. */
    public function release(): void
    {
        $lost = $this->end;
        $this->end = 'it was released';
        $this->client->call('release', ['ownerId' => $this->owner, 'requests' => [['path' => $this->path, 'mode' => $this->mode]], 'idempotencyKey' => bin2hex(random_bytes(16))]);
        if ($lost !== null) {
            throw new Lost("{$this->path}: $lost");
        }
    }

    private function mustHold(): void
    {
        if ($this->end === null && $this->validFor() <= 0) {
            $this->end = 'no renewal was confirmed in time';
        }
        if ($this->end !== null) {
            throw new Lost("{$this->path}: {$this->end}");
        }
    }
}
